"""Runs a program that reads its standard input and writes its standard output.

Arguments: `DOCUMENT READY`, the numbers of a file and a pipe.
"""

import json
import sys
import types

from kubealign_services.scoring.sandbox.inside.start import announce_readiness, define_exits, set_limits


def main() -> None:
    """Run the program as `__main__`."""
    with open(int(sys.argv[1]), encoding="utf-8") as file:  # noqa: PTH123 (a file descriptor)
        document = json.load(file)
    set_limits(document["limits"])
    module = types.ModuleType("__main__")
    ready = int(sys.argv[2])
    sys.argv = ["program.py"]
    sys.path.pop(0)
    define_exits()
    sys.modules["__main__"] = module
    announce_readiness(ready)
    exec(compile(document["program"], "program.py", "exec"), module.__dict__)
