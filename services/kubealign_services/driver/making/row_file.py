"""The rows made so far, on the disk: none is lost and none is written twice, whoever is killed when.

making/rows.jsonl grows by a step's rows at a time; making/state.json, replaced whole after each of them, says
how many of its bytes count. What lies behind them is of a step that did not end, and is cut off. At the end
the file becomes the result, and where a job that has ended is given more steps it is taken back.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from kubealign.spec.data import JOB_ROWS
from kubealign_services.checkpoints.durable import replace, sync
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.making.state import MakingState
from kubealign_services.telemetry.plain import to_json

_BLOCK = 1 << 20


class RowFile:
    """The rows of one run. `state` is what the file holds."""

    def __init__(self, run_dir: Path) -> None:
        """Open what is there. Raises JobFailed where it is not what was written."""
        folder = run_dir / "making"
        folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._state = folder / "rows.jsonl", folder / "state.json"
        self._result = run_dir / "result" / JOB_ROWS
        self._hash = xxhash.xxh3_64()
        self.state = MakingState()
        if self._state.exists():
            self.state = MakingState.model_validate_json(self._state.read_bytes())
        self._check()

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return self._result.exists()

    def append(self, rows: Sequence[dict[str, Any]], state: MakingState) -> None:
        """Add a step's rows; `state` is what they lead to, its counts of rows and bytes still the old ones.
        Raises JobFailed where the disk refuses: what was there before is intact."""
        data = "".join(to_json(row) + "\n" for row in rows).encode()
        try:
            self._write(data)
            self._hash.update(data)
            state.rows += len(rows)
            state.size_bytes += len(data)
            state.digest = self._hash.hexdigest()
            replace(self._state, [state.model_dump_json().encode()])
        except OSError as error:
            raise JobFailed(
                f"step {state.step} was not written: {error.strerror} at {error.filename or self._rows}; "
                "what was made before is intact. With the cause mended, the same command goes on from there"
            ) from error
        self.state = state

    def finish(self) -> None:
        """Make the rows the job's result."""
        self._move(self._rows, self._result)

    def _move(self, old: Path, new: Path) -> None:
        new.parent.mkdir(exist_ok=True)
        old.replace(new)
        for folder in (new.parent, old.parent):
            sync(folder)

    def _write(self, data: bytes) -> None:
        if self.finished:
            self._move(self._result, self._rows)
        with self._rows.open("r+b" if self._rows.exists() else "w+b") as file:
            file.truncate(self.state.size_bytes)
            file.seek(self.state.size_bytes)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _check(self) -> None:
        left = self.state.size_bytes
        path = self._result if self.finished else self._rows
        if not left:
            return
        if path.exists():
            with path.open("rb") as file:
                while left and (block := file.read(min(_BLOCK, left))):
                    self._hash.update(block)
                    left -= len(block)
        if left or self._hash.hexdigest() != self.state.digest:
            raise JobFailed(
                f"{path} is not what was written: its first {self.state.size_bytes} bytes have changed "
                "or are gone; start the job afresh"
            )
