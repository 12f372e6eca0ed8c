"""Server that forks `kubealign` commands, with the libraries of the role processes already imported.

The fork server of a command would import torch and transformers again: about seven seconds of processor time
for each local run of a test. The tests of tests/integration/local, cli and docs start the real programs.

Usage: python preloaded_server.py DESCRIPTOR, the number of an inherited Unix socket that keeps message
boundaries. A request is a JSON document of `arguments`, `environment` and `folder`, with two file
descriptors: the output of the command, and the pipe for its exit code. The answer is the process id. The
server ends when the socket is closed, and its commands end with it.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import random
import selectors
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kubealign.library_environment import BASE_ENVIRONMENT
from kubealign.local.processes.parent_death import die_with_parent
from kubealign.local.processes.preload_modules import modules_to_preload
from kubealign.role_specs import ROLE_SPECS

_LARGEST_MESSAGE = 1 << 20
_LIBRARIES = (
    *modules_to_preload(()),
    "transformers.models.llama.modeling_llama",
    "kubealign.cli.main",
)
_FORK_SERVER_CODE = "from multiprocessing.forkserver import main"
# Above the descriptors that a command has open when it starts its fork server.
_FREE_DESCRIPTOR = 200


#: Environment variable with the folder of the files that set the clocks, see `support.chaos.clocks`.
_CLOCKS = "KUBEALIGN_TEST_CLOCKS"


def _set_clock_file() -> None:
    """Name this process's clock file, for libfaketime."""
    if folder := os.environ.get(_CLOCKS):
        os.environ["FAKETIME_TIMESTAMP_FILE"] = f"{folder}/{os.getpid()}"


def _preload() -> None:
    os.register_at_fork(after_in_child=_set_clock_file)
    for name, value in BASE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    gc.disable()
    for module in (*_LIBRARIES, *(spec.module for spec in ROLE_SPECS.values() if spec.module is not None)):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()


def _serve(requests: socket.socket) -> None:
    """Fork a process for every request, and write the exit code of each to its pipe."""
    exit_pipes: dict[int, int] = {}
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    own = (requests.fileno(), woken.fileno(), wake.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(4096)
                _reap(exit_pipes)
            if requests in ready:
                message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_MESSAGE, 2)
                if not message:
                    return
                output, exit_pipe = descriptors
                pid = _fork(
                    _run_command, json.loads(message), output, close=(*own, *exit_pipes.values(), exit_pipe)
                )
                exit_pipes[pid] = exit_pipe
                os.close(output)
                requests.send(str(pid).encode())


def _reap(exit_pipes: dict[int, int]) -> None:
    for pid in list(exit_pipes):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            pipe = exit_pipes.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(pipe)


def _fork(run: Callable[..., None], *arguments: Any, close: Sequence[int]) -> int:
    """Return the id of a child process that calls the function and exits, with the code of its SystemExit."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(parent)
        for descriptor in close:
            os.close(descriptor)
        random.seed()
        run(*arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - goes to the output, and the exit code says that it failed
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_command(request: dict[str, Any], output: int) -> None:
    """Run the `kubealign` command. Its fork server is forked first, while this process has no thread."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[0:1] = [str(Path(request["arguments"][0]).parent), *added]
    sys.argv = request["arguments"]
    # A fork server imports the main module of its parent: not this program.
    sys.modules["__main__"] = types.ModuleType("__main__")
    handover, standby = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = _fork(_become_fork_server, standby, close=[handover.fileno()])
    standby.close()
    _use_as_fork_server(pid, handover)
    from kubealign.cli.main import app

    if "KUBEALIGN_TEST_LINKS" in os.environ:
        sys.path.append(str(Path(__file__).parents[1]))
        importlib.import_module("support.chaos.proxies").install()

    app()


def _use_as_fork_server(pid: int, handover: socket.socket) -> None:
    """Have multiprocessing use the process as the first fork server, instead of a new one."""
    spawn = multiprocessing.util.spawnv_passfds

    def spawn_or_hand_over(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        code = arguments[-1]
        if not code.startswith(_FORK_SERVER_CODE) or handover.fileno() < 0:
            return spawn(path, arguments, descriptors)
        state = {"code": code, "environment": dict(os.environ), "descriptors": list(descriptors)}
        socket.send_fds(handover, [json.dumps(state).encode()], descriptors)
        handover.close()
        return pid

    multiprocessing.util.spawnv_passfds = spawn_or_hand_over


def _become_fork_server(standby: socket.socket) -> None:
    """Wait for the descriptors of a fork server and run it; end where the command starts none."""
    message, descriptors, _, _ = socket.recv_fds(standby, _LARGEST_MESSAGE, 2)
    standby.close()
    if not message:
        return
    state = json.loads(message)
    # The code names the descriptors by their numbers in the command.
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _FREE_DESCRIPTOR) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for copy, number in zip(copies, state["descriptors"], strict=True):
        os.dup2(copy, number)
        os.close(copy)
    os.environ.clear()
    os.environ.update(state["environment"])
    exec(state["code"], {})


if __name__ == "__main__":
    _preload()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection)
