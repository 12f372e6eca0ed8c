"""Role processes: start-up, context, signals, health and exit, on one machine and in containers."""
