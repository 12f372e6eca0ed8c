"""Errors of tools."""


class ToolFailed(Exception):
    """A call failed. The policy reads the message, so it names no file, line or address."""
