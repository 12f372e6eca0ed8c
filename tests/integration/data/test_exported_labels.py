"""Labels of people, exported by the command, as training rows."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubealign.cli.main import app
from kubealign.client.backends.local.backend import LocalBackend
from kubealign.client.records import JobRef
from kubealign.human_labels import HumanLabel, LabelledResponse, Verdict
from kubealign.local.run_dir.layout import RunDirectory
from kubealign_services.data.collate import collate
from kubealign_services.data.preparation import prepare
from support.preparing import from_config, job, rows, sft

pytestmark = pytest.mark.timeout(120)


def label(prompt: str, verdict: Verdict, left: str, right: str, time: float) -> HumanLabel:
    sides = (LabelledResponse("default", "sums", step, text) for step, text in ((0, left), (9, right)))
    return HumanLabel(prompt, verdict, "ann", time, prompt, prompt, *sides)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs with a job whose responses were labelled."""
    folder = RunDirectory(tmp_path / "runs" / "job")
    folder.create()
    data = rows(tmp_path, [{"prompt": "1+1=", "response": "2"}])
    folder.write_job(sft(data).model_dump_json(by_alias=True))

    async def store() -> None:
        backend = LocalBackend(tmp_path / "runs")
        for each in (
            label("1+1=", Verdict.LEFT, "2", "3", 1.0),
            label("2+2=", Verdict.RIGHT, "5", "4", 2.0),
            label("3+3=", Verdict.BOTH_BAD, "7", "8", 3.0),
        ):
            await backend.add_label(JobRef("default", "job"), each)
        await backend.close()

    asyncio.run(store())
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("form", "algorithm", "member"),
    [
        ("preferences", {"dpo": {}}, "preferences"),
        ("preferences", {"rewardModel": {"objective": {"bradleyTerry": {}}}}, "preferences"),
        ("unpaired", {"kto": {}}, "unpaired"),
    ],
)
def test_exported_rows_are_prepared(
    runs: Path, tmp_path: Path, form: str, algorithm: dict[str, object], member: str
) -> None:
    path = tmp_path / "labels.jsonl"
    command = ["labels", "job", "--runs-dir", str(runs), "--out", str(path), "--format", form]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"2 rows of job in {path}" in result.stderr
    spec = {
        "algorithm": algorithm,
        "policy": {"model": from_config()},
        "data": {member: {"source": {"path": str(path)}}},
    }
    prepared = prepare(job(spec), tmp_path / "run", {})
    assert [row.prompt_text for row in prepared.train] == (
        ["1+1=", "2+2="] if form == "preferences" else ["3+3=", "3+3="]
    )
    batch = collate(prepared.train[:2], ["a", "b"], prepared.train.kind)
    if form == "unpaired":
        assert batch.sequence("label").tolist() == [0, 0]
    else:
        # Two responses for each row, of one character and the end of the text.
        assert (len(batch), int(batch.token("loss_mask").sum())) == (4, 8)


def test_a_file_that_cannot_be_written_is_named(runs: Path, tmp_path: Path) -> None:
    command = ["labels", "job", "--runs-dir", str(runs), "--out", str(tmp_path / "missing" / "x.jsonl")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "x.jsonl cannot be written: No such file or directory" in result.stderr
