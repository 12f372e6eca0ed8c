"""Entry point of forked child processes, between the fork and the role's own main. Runs in the child only."""

import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence

from kubealign.local.processes import fork_server_preload
from kubealign.local.processes.parent_death import die_with_parent, set_process_name


def run_module(
    name: str, log: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Call `module.main([name, *arguments])` and exit with its result. Does not return."""
    _set_up_process(name, log)
    # CUDA reads its variables when it is first used, which is never in the fork server.
    os.environ.update(environment)
    try:
        code = int(importlib.import_module(module).main([name, *arguments]))
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:  # noqa: BLE001 - reported: it goes to the log, and the code says that it failed
        traceback.print_exc()
        code = 1
    # Threads left behind must not keep the process alive.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_program(name: str, log: str, command: Sequence[str]) -> None:
    """Replace this process by another program with exec. Does not return."""
    _set_up_process(name, log)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.execv(command[0], list(command))


def _set_up_process(name: str, log: str) -> None:
    if fork_server_preload.FORK_SERVER_PID is None:
        raise RuntimeError("kubealign cannot be imported where sys.path has not been changed: install it")
    # Its own session, so that descendants left behind can be found and killed.
    os.setsid()
    die_with_parent(fork_server_preload.FORK_SERVER_PID)
    set_process_name(f"ka:{name}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _exit_code(error: SystemExit) -> int:
    """Return the exit code that the interpreter would use for this SystemExit."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    sys.stderr.write(f"{error.code}\n")
    return 1
