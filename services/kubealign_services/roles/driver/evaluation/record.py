"""Durable record of an evaluation: the metrics of the models that are measured, each of them once.

evaluation/measured.json is replaced atomically after each model. At the end its content becomes the job's
result.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kubealign.spec.algorithms.evaluation import RESULT_METRICS_FILE, EvaluateSpec
from kubealign.spec.sections.models import Model
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.fenced_files import replace_fenced

#: Folder of the evaluation in the run directory.
EVALUATION_FOLDER = "evaluation"


class _Measured(BaseModel):
    """Content of the file. metrics: step -> name -> value."""

    model_config = ConfigDict(extra="forbid")

    metrics: dict[int, dict[str, float]] = {}


class EvaluationRecord:
    """Metrics of the measured models of a run."""

    def __init__(self, fence: Fence) -> None:
        """Read the existing record. Raises UnrecoverableError if it is damaged."""
        self._fence = fence
        self._path = fence.run_dir / EVALUATION_FOLDER / "measured.json"
        self._measured = _Measured()
        try:
            self._measured = _Measured.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except ValidationError as error:
            raise UnrecoverableError(f"{self._path} was altered: start the job afresh") from error

    @property
    def metrics(self) -> Mapping[int, Mapping[str, float]]:
        """Metrics by step of the model."""
        return self._measured.metrics

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a model.

        Raises:
            StaleFence: Another driver has taken over.
            StorageFull, UnrecoverableError: The file cannot be written; earlier metrics are intact.
        """
        measured = _Measured(metrics={**self._measured.metrics, step: dict(metrics)})
        self._write(self._path, measured.model_dump(mode="json"))
        self._measured = measured

    def finish(self, policy: Model, evaluate: EvaluateSpec) -> None:
        """Write the job's result: the metrics of each model with its source, in the order of the steps."""
        models = {evaluate.step: policy} | {step: model for _, step, model in evaluate.numbered_models()}
        entries = [
            {
                "step": step,
                "model": models[step].model_dump(mode="json", by_alias=True, exclude_none=True),
                "metrics": self.metrics[step],
            }
            for step in evaluate.steps
        ]
        self._write(self._fence.run_dir / "result" / RESULT_METRICS_FILE, {"models": entries})

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        replace_fenced(self._fence, path, [json.dumps(document, indent=1, ensure_ascii=False)])
