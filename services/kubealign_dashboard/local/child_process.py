"""The dashboard as a child process of `kubealign run`: `python -m kubealign_dashboard.local.child_process`.

The run writes {runs_dir, token, listener, parent} as JSON on standard input: `listener` is the file
descriptor of a listening socket, `parent` the process id of the run, with which the dashboard ends.
"""

import json
import logging
import socket
import sys
from pathlib import Path

from kubealign.local.processes.parent_death import die_with_parent, set_process_name


def main() -> None:
    """Serve the dashboard until the parent process ends."""
    settings = json.loads(sys.stdin.readline())
    die_with_parent(settings["parent"])
    set_process_name("ka:dashboard")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    from kubealign_dashboard.local.serve import serve_runs

    with socket.socket(fileno=settings["listener"]) as listener:
        serve_runs(Path(settings["runs_dir"]), settings["token"], listener)


if __name__ == "__main__":
    main()
