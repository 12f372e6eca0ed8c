"""Environments of other processes: announcements on the bus, the choice among the workers, the client."""
