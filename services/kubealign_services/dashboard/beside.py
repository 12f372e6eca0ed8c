"""`python -m kubealign_services.dashboard.beside`: the dashboard as a child of `kubealign run`.

The run writes on its standard input: {runs_dir, token, listener, parent}, the last two the number of a socket
that listens and the process id of the run, without which there is nothing to show."""

import json
import logging
import socket
import sys
from pathlib import Path

from kubealign.local.death import die_with_parent, name_process


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    die_with_parent(settings["parent"])
    name_process("ka:dashboard")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    from kubealign_services.dashboard.serve import serve_runs

    with socket.socket(fileno=settings["listener"]) as listener:
        serve_runs(Path(settings["runs_dir"]), settings["token"], listener)


if __name__ == "__main__":
    main()
