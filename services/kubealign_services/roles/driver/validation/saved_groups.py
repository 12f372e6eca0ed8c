"""Scored responses of a measurement in progress, saved so that an interrupted measurement continues.

A file has one line per prompt with all of its samples: after a kill, a prompt is complete or not saved.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.roles.driver.errors import UnrecoverableError, disk_error
from kubealign_services.roles.driver.metrics.report import append_lines
from kubealign_services.roles.driver.validation.samples import ValidationSample


class SavedGroups:
    """Samples of the prompts that the measurements of one set of held-out rows have completed, by step."""

    def __init__(self, folder: Path, fence: Fence) -> None:
        self._folder = folder
        self._fence = fence

    def read(self, step: int) -> dict[str, list[ValidationSample]]:
        """Return group id -> samples of every prompt that was saved.

        Raises UnrecoverableError if the file was altered.
        """
        path = self._path(step)
        if not path.exists():
            return {}
        groups: dict[str, list[ValidationSample]] = {}
        # The last line may be incomplete: only complete lines end with a newline.
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        try:
            for line in lines:
                samples = [ValidationSample(**fields) for fields in json.loads(line)]
                groups.setdefault(samples[0].group_id, samples)
        except (ValueError, TypeError, IndexError) as error:
            raise UnrecoverableError(f"{path} was altered: start the job afresh") from error
        return groups

    def append(self, step: int, groups: Mapping[str, Sequence[ValidationSample]]) -> None:
        """Save the samples of complete prompts.

        Raises:
            StaleFence: Another driver has taken over.
            StorageFull, UnrecoverableError: They cannot be written; earlier ones are intact.
        """
        self._fence.check()
        path = self._path(step)
        lines = [
            json.dumps([asdict(sample) for sample in samples], ensure_ascii=False) + "\n"
            for samples in groups.values()
        ]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            append_lines(path, "".join(lines))
        except OSError as error:
            raise disk_error(f"{path} was not written: {error.strerror}", error) from error

    def delete(self, step: int) -> None:
        """Delete the samples of a measurement whose metrics are recorded."""
        self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"responses-{step:06d}.jsonl"
