"""A finished run continues where its job has become longer."""

from pathlib import Path

import pytest

from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.status import Phase, RunStatus
from kubealign.local.runner.admission import admit
from kubealign.spec.job import AlignmentJob


@pytest.mark.parametrize(
    ("before", "after", "is_finished"),
    [
        ((90, 2), (90, 2), True),
        ((90, 2), (91, 2), False),
        ((90, 2), (90, 3), False),
        ((90, 2), (None, 2), False),
        ((90, 2), (90, None), False),
        ((None, 2), (None, 2), True),
        ((None, 2), (None, 3), False),
        ((90, None), (90, None), True),
    ],
)
def test_only_a_longer_job_continues(
    before: tuple[int | None, int | None],
    after: tuple[int | None, int | None],
    is_finished: bool,
    tmp_path: Path,
) -> None:
    folder = RunDirectory(tmp_path / "tuned")
    folder.create()
    folder.write_job(_sft(*before).model_dump_json(by_alias=True))
    RunStatus(phase=Phase.SUCCEEDED, runner=7, started_at=1e9).write(folder.status)
    assert admit(_sft(*after), folder).is_finished is is_finished


def _sft(max_steps: int | None, max_epochs: int | None) -> AlignmentJob:
    return AlignmentJob.model_validate(
        {
            "metadata": {"name": "tuned"},
            "spec": {
                "maxSteps": max_steps,
                "algorithm": {"sft": {"maxEpochs": max_epochs}},
                "policy": {"model": {"path": "base"}},
                "data": {"demonstrations": {"source": {"path": "rows.jsonl"}}},
            },
        }
    )
