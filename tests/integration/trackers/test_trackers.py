"""Each tracker with its real library: written data is read back, also after a restart and a rollback."""

import csv
import json
import os
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob, TrackerNotInstalled
from kubealign_services.telemetry.trackers.factory import open_trackers
from kubealign_services.telemetry.trackers.separate_process.environment import find_tracker_python
from kubealign_services.telemetry.trackers.separate_process.library_client import (
    LibraryClient,
    LibraryProcessFailed,
)
from support.bad_specs import whole_job

#: Consecutive drivers: (fence, steps). The second one rolls back to the checkpoint of step 2.
DRIVERS = ((1, [1, 2, 3, 4]), (2, [3, 4, 5]))
#: Step, fence and sft/loss of all steps of the drivers, repeated ones included.
LOSSES = [(step, fence, step + fence / 10) for fence, steps in DRIVERS for step in steps]
#: The same without the fence.
LOSS_OF_STEP = [(step, loss) for step, _, loss in LOSSES]


def sample(response: str, reward: float) -> dict[str, object]:
    """Return a sample in the form of the read model."""
    return {
        "prompt": "a | b\nc",
        "response": response,
        "reward": reward,
        "rewards": {"exact": reward},
        "weight_version": 1,
        "truncated": False,
        "group_id": "0/7",
        "purpose": "train",
        "tokens": [],
        "token_values": {},
    }


def track(folder: Path, tracker: dict[str, object]) -> Path:
    """Write the metrics of two driver runs to a tracker named `it`; return its folder.

    Step 4 of the second one has three samples, of which the tracker gets two.
    """
    document = whole_job("sft") | {"metadata": {"name": "sums"}}
    document["spec"]["trackers"] = [{"name": "it", "completions": 2, **tracker}]
    job = AlignmentJob.model_validate(document)
    for fence, steps in DRIVERS:
        (opened_tracker,) = open_trackers(job, folder)
        for step in steps:
            opened_tracker.step(step, fence, {"sft/loss": step + fence / 10, "seconds/step": 0.5})
            if (fence, step) == (2, 4):
                samples = [sample("best", 0.75), sample("worst", 0.25), sample("other", 0.5)]
                opened_tracker.samples(step, fence, samples)
            if step == 2:
                opened_tracker.step(step, fence, {"val/loss": 7.0})
        opened_tracker.request_close(RunOutcome.STOPPED if fence == 1 else RunOutcome.SUCCEEDED)
        assert opened_tracker.wait_closed(120)
    return folder / "trackers" / "it"


def test_tensorboard(tmp_path: Path) -> None:
    folder = track(tmp_path, {"tensorBoard": {}})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    # Repeated steps of the second driver replace those of the first one.
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("sft/loss")] == [
        (1, 1.1),
        (2, 2.1),
        (3, 3.2),
        (4, 4.2),
        (5, 5.2),
    ]
    assert [(event.step, event.value) for event in events.Scalars("val/loss")] == [(2, 7.0)]
    texts = events.Tensors("spec/text_summary")
    assert b"demonstrations" in texts[0].tensor_proto.string_val[0]
    (table,) = events.Tensors("completions/train/text_summary")
    header, _, *rows = table.tensor_proto.string_val[0].decode().splitlines()
    assert table.step == 4 and "prompt | completion | reward | reward/exact" in header
    assert len(rows) == 2 and r"| a \| b<br>c | best | 0.75 | 0.75 |" in rows[0]


def test_mlflow_in_files(tmp_path: Path) -> None:
    folder = track(tmp_path, {"mlflow": {"experiment": "sums of ours"}})
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("sums of ours")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("sums", "FINISHED")
    assert "demonstrations" in run.data.tags["kubealign.spec"]
    (artifact,) = client.list_artifacts(run.info.run_id, "completions")
    assert artifact.path == "completions/train-000004.csv"
    with Path(client.download_artifacts(run.info.run_id, artifact.path)).open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["completion"], row["reward"], row["prompt"]) for row in table] == [
        ("best", "0.75", "a | b\nc"),
        ("worst", "0.25", "a | b\nc"),
    ]
    history = client.get_metric_history(run.info.run_id, "sft/loss")
    assert [(figure.step, figure.value) for figure in history] == LOSS_OF_STEP


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / kind))
    folder = track(tmp_path, {"weightsAndBiases": {"project": "sums", "mode": "Offline"}})
    run_id = (folder / "run-id").read_text()
    # One file per driver, both of the same run.
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert [file.name for file in files] == [f"run-{run_id}.wandb"] * 2
    rows = [row for file in files for row in history(file)]
    (logged,) = [row for row in rows if "completions/train.path" in row]
    rows.remove(logged)
    (path,) = folder.glob(f"wandb/offline-run-*/files/{logged['completions/train.path']}")
    table = json.loads(path.read_text())
    assert (logged["step"], table["columns"][3:6]) == (4, ["prompt", "completion", "reward"])
    assert [row[4:6] for row in table["data"]] == [["best", 0.75], ["worst", 0.25]]
    assert [(row["step"], row["fence"], row.get("sft/loss", row.get("val/loss"))) for row in rows] == [
        (1, 1, 1.1),
        (2, 1, 2.1),
        (2, 1, 7.0),
        (3, 1, 3.1),
        (4, 1, 4.1),
        (3, 2, 3.2),
        (4, 2, 4.2),
        (5, 2, 5.2),
    ]


def history(file: Path) -> list[dict[str, Any]]:
    """Return the rows of an offline file."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append(
                {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return rows


def records(data: bytes) -> Iterator[bytes]:
    """Read the library's LevelDB log format, after seven bytes of header.

    Blocks of 32 KiB with parts, each after its checksum (4), length (2) and kind (1: full, 2: first, 3:
    middle, 4: last).
    """
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0:
            at += left
            continue
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def test_swanlab_offline(tmp_path: Path) -> None:
    folder = track(tmp_path, {"swanLab": {"project": "sums", "mode": "Offline"}})
    # One folder per driver, both of the same run. Folders are named by seconds.
    runs = sorted(folder.glob("run-2*"), key=lambda path: path.stat().st_ctime_ns)
    assert len(runs) == 2
    drivers = [swanlab_records(run) for run in runs]
    records = [*drivers[0], *drivers[1]]
    starts = [record["start"] for record in records if "start" in record]
    run_id = (folder / "run-id").read_text()
    assert [(start["id"], start["name"], start["project"]) for start in starts] == [
        (run_id, "sums", "sums")
    ] * 2
    states = [record["finish"]["state"] for record in records if "finish" in record]
    assert states == ["RUN_STATE_ABORTED", "RUN_STATE_FINISHED"]
    # SwanLab drops values at an earlier step of its own; its step is not the job's, so none is missing.
    assert scalars(drivers, "step", "sft/loss") == LOSS_OF_STEP
    assert scalars(drivers, "step", "val/loss") == [(2, 7.0)]
    (table,) = (record["media"] for record in records if "media" in record)
    assert table["key"] == "completions/train"
    (item,) = table["value"]["items"]
    (path,) = folder.glob(f"run-*/media/echarts/{item['filename']}")
    rows = json.loads(path.read_text())["rowData"]
    assert [(row["step"], row["completion"], row["reward"]) for row in rows] == [
        (4, "best", 0.75),
        (4, "worst", 0.25),
    ]


def swanlab_records(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's folder, read by SwanLab's own reader in the trackers' environment."""
    reader = Path(__file__).parent / "readers" / "swanlab_runs.py"
    python = find_tracker_python("it", "swanlab")
    done = subprocess.run([python, "-E", reader, run], capture_output=True, text=True, timeout=60, check=True)
    records: list[dict[str, Any]] = json.loads(done.stdout)
    return records


def scalars(runs: list[list[dict[str, Any]]], x: str, y: str) -> list[tuple[float, float]]:
    """Return the values of two metrics that were logged together, run by run."""
    pairs = []
    for records in runs:
        logged: dict[int, dict[str, float]] = {}
        for scalar in (record["scalar"] for record in records if "scalar" in record):
            # The library's own first step is 0, which the message omits.
            values = logged.setdefault(int(scalar.get("step", 0)), {})
            values[scalar["key"]] = scalar["value"]["number"]
        pairs += [(values[x], values[y]) for _, values in sorted(logged.items()) if y in values]
    return pairs


def test_trackio_in_files(tmp_path: Path) -> None:
    folder = track(tmp_path, {"trackio": {"project": "sums"}})
    with sqlite3.connect(folder / "sums.db") as database:
        rows = database.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
        (config,) = database.execute("select config from configs limit 1").fetchone()
    logged = [(step, json.loads(metrics)) for *_, step, metrics in rows]
    # Both drivers write the same run.
    assert [name for _, name in {row[:2] for row in rows}] == ["sums"]
    losses = [
        (step, metrics["fence"], metrics["sft/loss"]) for step, metrics in logged if "sft/loss" in metrics
    ]
    assert losses == LOSSES
    assert [(step, metrics["val/loss"]) for step, metrics in logged if "val/loss" in metrics] == [(2, 7.0)]
    (table,) = [
        (step, metrics["completions/train"]) for step, metrics in logged if "completions/train" in metrics
    ]
    assert table[0] == 4 and [(row["completion"], row["reward"]) for row in table[1]["_value"]] == [
        ("best", 0.75),
        ("worst", 0.25),
    ]
    assert "demonstrations" in json.dumps(json.loads(config))


def test_a_library_process_that_fails_or_ends_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path))
    job = TrackedJob("sums", "default", {})
    python = find_tracker_python("it", "swanlab")
    settings = {"project": "sums", "workspace": None, "mode": "Online", "run_id": "a"}
    with pytest.raises(LibraryProcessFailed, match=r"(?i)no API key|login"):
        LibraryClient(python, "swanlab", settings, job, tmp_path)
    client = LibraryClient(python, "swanlab", settings | {"mode": "Offline"}, job, tmp_path)
    psutil.Process(client.pid).kill()
    with pytest.raises(
        LibraryProcessFailed, match=r"swanlab ended (before|during) step; the end of library\.log"
    ):
        client.step(1, 1, {"sft/loss": 1.0})
    stopped = LibraryClient(python, "swanlab", settings | {"mode": "Offline", "run_id": "b"}, job, tmp_path)
    child = psutil.Process(stopped.pid)
    child.suspend()
    stopped.answer_seconds = 0.2
    with pytest.raises(LibraryProcessFailed, match=r"swanlab did not answer step within 0\.2 s"):
        stopped.step(1, 1, {"sft/loss": 1.0})
    assert not child.is_running()


def test_a_missing_environment_is_named_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEALIGN_TRACKERS", str(tmp_path))
    with pytest.raises(
        TrackerNotInstalled, match=rf"spec.trackers, it: trackio is not installed in {tmp_path}"
    ):
        track(tmp_path, {"trackio": {}})


def test_json_lines(tmp_path: Path) -> None:
    folder = track(tmp_path, {"jsonLines": {}})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["fence"]) for line in lines] == [
        (1, 1),
        (2, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (3, 2),
        (4, 2),
        (5, 2),
    ]
    rows = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    assert [(row["step"], row["fence"], row["completion"], row["reward/exact"]) for row in rows] == [
        (4, 2, "best", 0.75),
        (4, 2, "worst", 0.25),
    ]
