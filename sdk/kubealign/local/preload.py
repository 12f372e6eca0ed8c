"""What the fork server imports before it forks, so that its children need not.

Only the fork server imports this module, with the environment variable KUBEALIGN_FORK_SERVER set to a
`Preload` as JSON. Imports only: a thread, a channel or a CUDA call before the fork breaks every child.
"""

import gc
import importlib
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from kubealign.local.death import die_with_parent, name_process

VARIABLE = "KUBEALIGN_FORK_SERVER"


@dataclass(frozen=True)
class Preload:
    """The fork server's orders."""

    #: Process id of the runner.
    parent: int
    #: Where it writes what it has to say.
    log: str
    #: Where it writes its process id.
    pid_file: str
    #: Set before anything is imported, as libraries read some of it then. What the user has set stays.
    environment: dict[str, str]
    modules: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


#: Process id of the fork server: the parent of every process that it makes.
FORK_SERVER: int | None = None


def _preload(orders: Preload) -> None:
    # Ctrl-C on the terminal is for the runner.
    os.setsid()
    die_with_parent(orders.parent)
    name_process("ka:fork-server")
    Path(orders.pid_file).write_text(str(os.getpid()))
    log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, value in orders.environment.items():
        os.environ.setdefault(name, value)
    # What is imported stays. Walking it again and again meanwhile would be a seventh of the time it takes.
    gc.disable()
    for module in orders.modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - the process whose module it is fails with the same error, and says so
            sys.stderr.write(f"{module} could not be imported ahead:\n{traceback.format_exc()}")
    sys.stderr.flush()
    # The children need not walk it either, which would copy its pages.
    gc.collect()
    gc.freeze()
    gc.enable()


if VARIABLE in os.environ:
    FORK_SERVER = os.getpid()
    _preload(Preload(**json.loads(os.environ.pop(VARIABLE))))
