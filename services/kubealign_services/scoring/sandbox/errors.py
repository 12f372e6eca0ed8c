"""Errors of the sandbox itself, as opposed to those of programs in it."""


class SandboxUnavailable(ValueError):
    """This machine cannot isolate a program; the message says what it needs."""


class SandboxFailed(RuntimeError):
    """A sandbox did not start, or ended in a way that a program cannot bring about."""
