"""The dashboard of this machine's runs, as started by `kubealign dashboard`."""

import socket
import sys
import webbrowser
from pathlib import Path
from secrets import token_urlsafe

from kubealign_dashboard.app import create_app
from kubealign_dashboard.local.access import LocalAccess
from kubealign_dashboard.server import serve
from kubealign_dashboard.streams.hub import StreamLimits

# Every page belongs to the same user.
_STREAM_LIMITS = StreamLimits(per_caller=StreamLimits.total)
_NAMES = ("localhost", "127.0.0.1", "::1")


def serve_local(runs_dir: Path, host: str = "127.0.0.1", port: int = 0, open_browser: bool = False) -> int:
    """Serve until Ctrl-C or SIGTERM. Prints the address with its access token.

    Args:
        host: An address or name of this machine.
        port: 0: a free port.

    Returns:
        The exit code.
    """
    try:
        listener = _listener(host, port)
    except OSError as error:
        sys.stderr.write(f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}\n")
        return 1
    token = token_urlsafe(32)
    with listener:
        url = address(host, listener.getsockname()[1], token)
        sys.stdout.write(f"dashboard: {url}\n")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(url)
        serve_runs(runs_dir, token, listener, host)
    return 0


def serve_runs(runs_dir: Path, token: str, listener: socket.socket, host: str = "127.0.0.1") -> None:
    """Serve on a listening socket until a signal arrives."""
    access = LocalAccess(runs_dir.absolute(), token)
    serve(create_app(access, hosts=(host, *_NAMES), stream_limits=_STREAM_LIMITS), [listener])


def address(host: str, port: int, token: str) -> str:
    """Return the URL to open. A wildcard host is replaced by the loopback address."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={token}"


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)
