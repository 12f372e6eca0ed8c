"""Python functions as rewards and tools, each in a process of its own."""
