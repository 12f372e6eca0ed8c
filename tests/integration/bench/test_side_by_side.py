"""Two sides that alternate on one machine: real processes, stopped and resumed."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.bench.turns import Turns

# The child process records the time repeatedly.
_SIDE = """
import subprocess, sys
note = '''
import sys, time
with open(sys.argv[1], "w", 1) as file:
    while True:
        print(time.time(), file=file)
        time.sleep(0.001)
'''
with subprocess.Popen([sys.executable, "-c", note, sys.argv[1]]) as child:
    child.wait()
"""


def test_only_the_scheduled_side_runs(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "other")]
    with contextlib.ExitStack() as ended:
        older = ended.enter_context(subprocess.Popen([sys.executable, "-c", _SIDE, str(tmp_path / "older")]))
        ended.callback(_end, older)
        turns = ended.enter_context(Turns(0.1))
        for number, file in enumerate(files):
            command = [sys.executable, "-c", _SIDE, str(file)]
            side = ended.enter_context(subprocess.Popen(command))
            ended.callback(_end, side)
            turns.wait_for_sides(number + 1)
        _until(lambda: all(_noted(file) for file in files))
        begin = time.time()
        _until(lambda: all(_noted(file)[-1] > begin + 1.0 for file in files))
        end = min(_noted(file)[-1] for file in files)
        assert psutil.Process(older.pid).status() != psutil.STATUS_STOPPED, "it was there before"
    own = [turns.seconds(number, begin, end) for number in (0, 1)]
    assert own[0] + own[1] <= end - begin
    assert min(own) > 0
    for number, file in enumerate(files):
        noted = [each for each in _noted(file) if begin <= each <= end]
        within = sum(
            turns.seconds(number, before, after) >= 0.999 * (after - before)
            for before, after in itertools.pairwise(noted)
        )
        # The end of a turn is a longer pause; sometimes a signal arrives late.
        assert within > 0.9 * len(noted)
        assert turns.seconds(1 - number, noted[0], noted[-1]) > 0, "it never had to wait"


def _noted(file: Path) -> list[float]:
    """Return the recorded times; the last line may be incomplete."""
    return [float(line) for line in file.read_text().splitlines()[:-1]] if file.is_file() else []


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "they have noted too little"
        time.sleep(0.05)


def _end(side: subprocess.Popen[bytes]) -> None:
    family = [*psutil.Process(side.pid).children(recursive=True), psutil.Process(side.pid)]
    for process in family:
        process.kill()
