"""The model of any checkpoint of a run is exported bit for bit as the trainer holds it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.running import EndedCommand, RunningJobs, left_running, run_command
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Train two ranks, which shard the optimiser and an adapter, for four steps with two checkpoints."""
    folder = tmp_path_factory.mktemp("export")
    job = online_job(
        folder,
        "trained",
        {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}},
        maxSteps=4,
        checkpoint={"everySteps": 2},
    )
    job["spec"]["trainer"] |= {"ranks": 2, "lora": {"rank": 2}}
    with RunningJobs(write_jobs(folder, job), folder / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output
    yield folder / "runs"
    assert left_running(folder) == {}


def export(runs: Path, step: int, out: Path, run: str = "trained") -> EndedCommand:
    return run_command(
        "export", run, "--step", str(step), "--out", str(out), "--runs-dir", str(runs), timeout=150
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_last_step_is_the_result_and_an_earlier_one_is_not(runs: Path, tmp_path: Path) -> None:
    before = files(runs / "trained")
    last = export(runs, 4, tmp_path / "last")
    assert last.code == 0, last.output
    result = files(runs / "trained" / "result")
    assert files(tmp_path / "last") == result
    assert {"model.safetensors", "config.json", "adapter/adapter_model.safetensors"} <= result.keys()
    earlier = export(runs, 2, tmp_path / "earlier", run=str(runs / "trained"))
    assert earlier.code == 0, earlier.output
    exported = files(tmp_path / "earlier")
    assert exported.keys() == result.keys()
    assert exported["model.safetensors"] != result["model.safetensors"]
    assert files(runs / "trained") == before, "the run is only read"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "last"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "earlier")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "earlier")
    assert model.config.vocab_size == len(tokenizer)


def test_a_step_without_a_checkpoint_names_those_that_exist(runs: Path, tmp_path: Path) -> None:
    done = export(runs, 3, tmp_path / "none")
    assert done.code == 2
    text = " ".join(done.output.split())
    assert "--step 3" in text and "has no checkpoint of step 3; it has those of 0, 2, 4" in text
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_not_overwritten(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    done = export(runs, 4, tmp_path / "mine")
    assert done.code == 2
    assert "exists: name another folder, or delete it" in " ".join(done.output.split())
