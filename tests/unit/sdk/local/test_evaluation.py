"""Documents of evaluations: of a run with its own validation, of a model folder, of a name on the hub."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.local.evaluation import EvaluatedRun, find_run, model_document, select_steps
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.spec_diff import job_document
from kubealign.replay.plan import ReplayError
from kubealign.spec.job import AlignmentJob
from support.bad_specs import whole_job

HELD = {"prompts": {"source": {"path": "/held.jsonl"}}}


def run_of(folder: Path, changes: dict[str, Any], steps: tuple[int, ...] = (20, 40)) -> RunDirectory:
    """Return a run directory with a job's document and the names of checkpoints."""
    run = RunDirectory(folder / "runs" / "grpo")
    run.create()
    document = job_document(AlignmentJob.model_validate(whole_job("grpo", changes)))
    run.write_job(json.dumps(document))
    for step in steps:
        (run.checkpoints / f"step-{step:08d}-fence-1").mkdir()
    return run


def test_a_run_is_measured_with_its_own_validation_and_engine(tmp_path: Path) -> None:
    validation = {
        "data": HELD,
        "everySteps": 5,
        "earlyStopping": {"metric": "val/reward/exact", "target": {"atLeast": 1.0}},
        "sampling": {"samplesPerPrompt": 4},
        "atStart": False,
        "sets": [{"name": "sums", "data": HELD, "everySteps": 2, "atEnd": False, "rewards": ["exact"]}],
    }
    changes = {
        "spec.validation": validation,
        "spec.trainer": {"backend": {"torch": {"precision": "BFloat16"}}},
        "spec.rollout": {"placement": "WithTrainer"},
        "spec.seed": 7,
    }
    run = run_of(tmp_path, changes)
    document = EvaluatedRun(run, [0, 40]).document("curve", {0: Path("/m/0"), 40: Path("/m/40")})
    spec = AlignmentJob.model_validate_json(json.dumps(document)).spec
    assert spec.algorithm.value.steps == [0, 40]
    assert spec.policy.model.path == "/m/0"
    assert spec.algorithm.value.checkpoints[0].model.path == "/m/40"
    assert spec.validation is not None and spec.validation.sampling is not None
    assert spec.validation.sampling.samples_per_prompt == 4
    (entry,) = spec.validation.sets
    assert (entry.name, entry.rewards) == ("sums", ["exact"])
    assert spec.seed == 7
    assert [reward.name for reward in spec.rewards] == ["exact"]
    assert spec.rollout.engine.value.precision == "BFloat16"


def test_steps_are_those_of_checkpoints(tmp_path: Path) -> None:
    run = run_of(tmp_path, {})
    assert select_steps(run, "all") == [0, 20, 40]
    assert select_steps(run, "40, 20,40") == [20, 40]
    with pytest.raises(ReplayError, match="has no checkpoint of step 30; it has those of 0, 20, 40"):
        select_steps(run, "20,30")
    with pytest.raises(ReplayError, match="--steps last: must be all, or numbers of steps such as 20,40"):
        select_steps(run, "last")


def test_a_run_is_named_or_located(tmp_path: Path) -> None:
    run = run_of(tmp_path, {})
    for target in ("grpo", str(run.root)):
        located = find_run(target, tmp_path / "runs")
        assert located is not None and located.root == run.root
    assert find_run("other", tmp_path / "runs") is None


def test_models_are_folders_or_names_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    folder = model_document("e", str(tmp_path / "base"))["spec"]["policy"]["model"]
    assert folder == {"path": str(tmp_path / "base")}
    hub = model_document("e", "acme/sft-7b")["spec"]["policy"]["model"]
    assert hub == {"huggingFace": {"repo": "acme/sft-7b"}}
    with pytest.raises(ReplayError, match=r"holds neither a model \(config.json\) nor a run"):
        model_document("e", str(tmp_path))
    with pytest.raises(ReplayError, match="there is no such folder, no such run"):
        model_document("e", "nothing")
