"""Durable file of generated rows: no row is lost or written twice, whichever process is killed at any time.

making/rows.jsonl grows by the rows of one step at a time. making/state.json, replaced atomically after
each step, holds the number of valid bytes. Bytes behind them belong to an unfinished step and are
truncated. At the end the file becomes the job's result; if a finished job is given more steps, the file is
moved back.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from kubealign.spec.sections.data import RESULT_ROWS_FILE
from kubealign_services.checkpoints.durable_files import fsync_path, replace_file
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.errors import UnrecoverableError, disk_error
from kubealign_services.telemetry.json_values import to_json

_BLOCK_BYTES = 1 << 20


class RowFile:
    """Rows of one run. `state` describes the content of the file."""

    def __init__(self, run_dir: Path) -> None:
        """Open the existing file. Raises UnrecoverableError if its content was altered."""
        folder = run_dir / "making"
        folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._state = folder / "rows.jsonl", folder / "state.json"
        self._result = run_dir / "result" / RESULT_ROWS_FILE
        self._hash = xxhash.xxh3_64()
        self.state = DataGenerationState()
        if self._state.exists():
            self.state = DataGenerationState.model_validate_json(self._state.read_bytes())
        self._verify()

    @property
    def is_finished(self) -> bool:
        """True if the result exists."""
        return self._result.exists()

    def append(self, rows: Sequence[dict[str, Any]], state: DataGenerationState) -> None:
        """Append a step's rows.

        Args:
            state: State after the step; its counts of rows and bytes are updated here.

        Raises:
            StorageFull: Storage is full or does not answer; earlier rows are intact.
            UnrecoverableError: The disk refuses for another reason; earlier rows are intact.
        """
        data = "".join(to_json(row) + "\n" for row in rows).encode()
        try:
            self._write(data)
            self._hash.update(data)
            state.rows += len(rows)
            state.size_bytes += len(data)
            state.digest = self._hash.hexdigest()
            replace_file(self._state, [state.model_dump_json().encode()])
        except OSError as error:
            raise disk_error(
                f"step {state.step} was not written: {error.strerror} at {error.filename or self._rows}; "
                "earlier rows are intact. Fix the cause; the same command then continues",
                error,
            ) from error
        self.state = state

    def finish(self) -> None:
        """Move the rows to the job's result."""
        self._move(self._rows, self._result)

    def _move(self, old: Path, new: Path) -> None:
        new.parent.mkdir(exist_ok=True)
        old.replace(new)
        for folder in (new.parent, old.parent):
            fsync_path(folder)

    def _write(self, data: bytes) -> None:
        if self.is_finished:
            self._move(self._result, self._rows)
        with self._rows.open("r+b" if self._rows.exists() else "w+b") as file:
            file.truncate(self.state.size_bytes)
            file.seek(self.state.size_bytes)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _verify(self) -> None:
        """Raise UnrecoverableError if the file's content does not match the state."""
        remaining = self.state.size_bytes
        path = self._result if self.is_finished else self._rows
        if not remaining:
            return
        if path.exists():
            with path.open("rb") as file:
                while remaining and (block := file.read(min(_BLOCK_BYTES, remaining))):
                    self._hash.update(block)
                    remaining -= len(block)
        if remaining or self._hash.hexdigest() != self.state.digest:
            raise UnrecoverableError(
                f"{path} was altered: its first {self.state.size_bytes} bytes have changed "
                "or are gone; start the job afresh"
            )
