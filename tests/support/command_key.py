"""Key of the commands between the ranks of a test's group."""

COMMAND_KEY = bytes(range(32))
