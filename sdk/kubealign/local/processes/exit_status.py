"""Descriptions of process exits for status messages."""

import signal
from pathlib import Path

from kubealign.local.processes.fork_server import ChildProcess
from kubealign.local.processes.log_tail import read_log_tail
from kubealign.local.run_dir.disk import disk_full_message, is_full


def describe_exit(code: int) -> str:
    """Return `ended with code 1` or `was killed by SIGKILL`; `code` is the negative signal number in the
    latter case.
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def crash_message(child: ChildProcess, ended: str, max_restarts: int) -> str:
    """Return the failure message for a process that exceeded the restart budget.

    Args:
        ended: How the process ended, see `describe_exit`.
    """
    budget = f"all {max_restarts} restarts are used up" if max_restarts else "the job allows no restart"
    return (
        f"{child.name} {ended}, and {budget} (lifecycle.maxRestarts). "
        f"Its log, {child.log}, ends:\n{read_log_tail(child.log, child.log_start)}"
    )


def read_termination_message(termination: Path | None) -> str:
    """Return the termination message that a process wrote for a permanent failure; empty if none.

    A process killed while writing the message leaves an empty file.
    """
    try:
        return termination.read_text().strip() if termination is not None else ""
    except OSError:
        return ""


def permanent_failure_message(child: ChildProcess, termination: Path | None) -> str:
    """Return the failure message for a process that reported a permanent failure."""
    if cause := read_termination_message(termination):
        return f"{child.name}: {cause}"
    if is_full(child.log.parent):
        return f"{child.name}: {disk_full_message(child.log.parent)}"
    return (
        f"{child.name} reported a permanent failure, but not its cause. "
        f"Its log, {child.log}, ends:\n{read_log_tail(child.log, child.log_start)}"
    )
