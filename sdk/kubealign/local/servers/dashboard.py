"""Dashboard subprocess of a local run, which ends with the run and cannot harm it."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe

# Started by module name: the SDK does not import the services.
_MODULE = "kubealign_dashboard.local.child_process"
_REQUIRED_PACKAGES = ("fastapi", "uvicorn", "plotly", "prometheus_client")
_HOST = "127.0.0.1"
_TERMINATE_SECONDS = 5.0


@contextmanager
def dashboard_process(runs_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the dashboard of these runs while the context is open, and report its address or the reason why
    it is not started.
    """
    if any(importlib.util.find_spec(name) is None for name in _REQUIRED_PACKAGES):
        say("dashboard: not installed: pip install 'kubealign[dashboard]'")
        yield
        return
    try:
        process, address = _start(runs_dir)
    except OSError as error:
        say(f"dashboard: not started: {error}")
        yield
        return
    say(f"dashboard: {address}")
    over = threading.Event()

    def report_exit() -> None:
        code = process.wait()
        if not over.is_set():
            say(
                f"dashboard: exited with code {code} (log: {_log_path(runs_dir)}); "
                "the run continues without it"
            )

    threading.Thread(target=report_exit, name="dashboard", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _terminate(process)


def _start(runs_dir: Path) -> tuple["subprocess.Popen[bytes]", str]:
    """Start the process on a socket that already listens, so that the address is valid before the process is
    ready.
    """
    token = token_urlsafe(32)
    with socket.create_server((_HOST, 0)) as listener, _log_path(runs_dir).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            # Ctrl-C is for the run: the dashboard stays available while the run stops.
            start_new_session=True,
        )
        # Passed on stdin: the command line is readable by every user of the machine.
        settings = {
            "runs_dir": str(runs_dir),
            "token": token,
            "listener": listener.fileno(),
            "parent": os.getpid(),
        }
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(json.dumps(settings).encode())
        return process, f"http://{_HOST}:{listener.getsockname()[1]}/?token={token}"


def _terminate(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _log_path(runs_dir: Path) -> Path:
    return runs_dir / "dashboard.log"
