"""Runs one tier of the test suite and records its duration.

`python -m tests.support.tier NAME COMMAND...` runs the command and returns its exit code;
`python -m tests.support.tier` prints the durations recorded so far and deletes them.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

_RECORDS = Path(".pytest_cache") / "tier-seconds.jsonl"


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    if not arguments:
        _print_durations()
        return 0
    name, *command = arguments
    start = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    _RECORDS.parent.mkdir(exist_ok=True)
    with _RECORDS.open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, round(time.monotonic() - start)]) + "\n")
    return code


def _print_durations() -> None:
    if not _RECORDS.exists():
        return
    records = [json.loads(line) for line in _RECORDS.read_text(encoding="utf-8").splitlines()]
    _RECORDS.unlink()
    print("\nseconds by tier: " + ", ".join(f"{name} {seconds}" for name, seconds in records))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
