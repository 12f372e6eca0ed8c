"""Checkpoints of a run on this machine: sizes and pins, by function and by command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubealign.checkpoint_pins import pinned_steps
from kubealign.cli.exit_codes import CliExitCode
from kubealign.cli.main import app
from kubealign.local.checkpoints import list_checkpoints, pin_checkpoint, unpin_checkpoint
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.spec.job import AlignmentJob
from support.bad_specs import whole_job


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with checkpoints of steps 2 and 4, of 300 and of 500 bytes."""
    folder = RunDirectory(tmp_path / "sft")
    folder.create()
    folder.write_job(AlignmentJob.model_validate(whole_job("sft")).model_dump_json(by_alias=True))
    for step, sizes in ((2, (100, 200)), (4, (500,))):
        path = folder.checkpoints / f"step-{step:08d}-fence-1"
        path.mkdir()
        shards = {"trainer": [{"name": str(index), "size_bytes": size} for index, size in enumerate(sizes)]}
        manifest = {"step": step, "shards": shards, "created": "2026-01-02T03:04:05+00:00"}
        (path / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_sizes_and_pins_of_checkpoints(run: RunDirectory) -> None:
    pin_checkpoint(run, 4)
    pin_checkpoint(run, 4)
    summaries = [(each.step, each.size_bytes, each.is_pinned) for each in list_checkpoints(run)]
    assert summaries == [(2, 300, False), (4, 500, True)]
    (run.checkpoints / "step-00000002-fence-1" / "manifest.json").write_text("{")
    assert [each.step for each in list_checkpoints(run)] == [4]
    unpin_checkpoint(run, 4)
    assert pinned_steps(run.root) == set()


def test_steps_without_a_checkpoint_or_a_pin_are_refused(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(RunRefused, match=r"--at 3: .*sft has no checkpoint of step 3; it has those of 2, 4"):
        pin_checkpoint(run, 3)
    with pytest.raises(RunRefused, match=r"--at 2: step 2 of .*sft is not pinned; none is pinned"):
        unpin_checkpoint(run, 2)
    pin_checkpoint(run, 4)
    with pytest.raises(RunRefused, match=r"is not pinned; pinned are 4"):
        unpin_checkpoint(run, 2)
    with pytest.raises(RunRefused, match=r"gone holds no run"):
        pin_checkpoint(RunDirectory(tmp_path / "gone"), 3)
    assert not (tmp_path / "gone").exists()


def test_the_commands(run: RunDirectory) -> None:
    def invoke(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*arguments, "--runs-dir", str(run.root.parent)])
        return result.exit_code, result.output

    assert invoke("pin", "sft", "--at", "2") == (0, "sft: the checkpoint of step 2 is pinned\n")
    assert pinned_steps(run.root) == {2}
    code, output = invoke("describe", "sft")
    assert code == 0
    rows = [line.split() for line in output.splitlines()]
    assert [row for row in rows if row[:1] == ["2"] and row[-1] == "yes"]
    assert invoke("unpin", "sft", "--at", "2")[0] == 0
    assert pinned_steps(run.root) == set()
    assert invoke("pin", "sft", "--at", "3")[0] == CliExitCode.USAGE
