"""Record of an evaluation: metrics survive a restart, and the result names each model."""

import json
from pathlib import Path

import pytest

from kubealign.spec.algorithms import EvaluateSpec
from kubealign.spec.sections.models import Model
from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.evaluation.record import EvaluationRecord


def record(folder: Path) -> EvaluationRecord:
    return EvaluationRecord(Fence(folder, acquire_fence(folder)))


def test_metrics_of_measured_models_survive_a_restart(tmp_path: Path) -> None:
    first = record(tmp_path)
    assert first.metrics == {}
    first.add(0, {"val/exact": 0.25})
    first.add(20, {"val/exact": 0.5})
    again = record(tmp_path)
    assert again.metrics == {0: {"val/exact": 0.25}, 20: {"val/exact": 0.5}}
    with pytest.raises(StaleFence):
        first.add(40, {})


def test_the_result_has_the_models_in_the_order_of_their_steps(tmp_path: Path) -> None:
    measured = record(tmp_path)
    entry = EvaluateSpec.model_validate({"checkpoints": [{"step": 20, "model": {"path": "/models/20"}}]})
    measured.add(20, {"val/exact": 0.5})
    measured.add(0, {"val/exact": 0.25})
    measured.finish(Model(path="/models/base"), entry)
    result = json.loads((tmp_path / "result" / "metrics.json").read_text())
    assert result == {
        "models": [
            {"step": 0, "model": {"path": "/models/base"}, "metrics": {"val/exact": 0.25}},
            {"step": 20, "model": {"path": "/models/20"}, "metrics": {"val/exact": 0.5}},
        ]
    }


def test_an_altered_record_fails_with_its_name(tmp_path: Path) -> None:
    record(tmp_path).add(0, {"val/exact": 0.25})
    (tmp_path / "evaluation" / "measured.json").write_text('{"metrics": 3}')
    with pytest.raises(UnrecoverableError, match=r"measured.json was altered"):
        record(tmp_path)
