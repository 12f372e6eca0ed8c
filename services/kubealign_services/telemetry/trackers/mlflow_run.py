"""Tracker that writes to an MLflow run."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kubealign.spec.sections.trackers import MlflowTracker
from kubealign_services.telemetry.trackers.completions import TABLE, to_csv
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob

_RUN_ID_FILE = "run-id"
#: Limits of MLflow servers: metrics in one call, and characters of a tag's value.
_MAX_BATCH, _MAX_TAG_CHARACTERS = 1000, 5000
#: Characters that are not allowed in a metric's name.
_INVALID_CHARACTERS = re.compile(r"[^-\w./ ]")
_STATUS = {RunOutcome.SUCCEEDED: "FINISHED", RunOutcome.FAILED: "FAILED", RunOutcome.STOPPED: "KILLED"}


class MlflowWriter:
    """Writes one MLflow run for the job across its restarts: the run id is kept in the tracker's folder.

    The metrics of a repeated step are added with a later time. Raises the library's exceptions, such as a
    server that does not answer.
    """

    def __init__(self, job: TrackedJob, spec: MlflowTracker, folder: Path) -> None:
        if spec.tracking_uri is None:
            # The library requires an explicit opt-in to the file store, which needs no database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=spec.tracking_uri or (folder / "mlruns").as_uri())
        self._run = self._resume_run(folder) or self._create_run(job, spec.experiment, folder)

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [
            Metric(_INVALID_CHARACTERS.sub("_", name), value, now, step)
            for name, value in {**metrics, "fence": float(fence)}.items()
        ]
        for begin in range(0, len(batch), _MAX_BATCH):
            self._client.log_batch(self._run, metrics=batch[begin : begin + _MAX_BATCH])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        # A file for each step: the library's own tables are read and written whole for each addition.
        name = f"{TABLE}/{rows[0]['purpose']}-{step:06d}.csv"
        self._client.log_text(self._run, to_csv(rows), name)

    def close(self, outcome: RunOutcome) -> None:
        self._client.set_terminated(self._run, _STATUS[outcome])

    def _resume_run(self, folder: Path) -> str | None:
        path = folder / _RUN_ID_FILE
        if not path.exists():
            return None
        run = path.read_text()
        self._client.update_run(run, status="RUNNING")
        return run

    def _create_run(self, job: TrackedJob, experiment: str, folder: Path) -> str:
        existing = self._client.get_experiment_by_name(experiment)
        if existing is None:
            experiment_id = self._client.create_experiment(experiment)
        else:
            experiment_id = existing.experiment_id
        spec = yaml.safe_dump(dict(job.spec), sort_keys=False, allow_unicode=True)
        tags = {"kubealign.namespace": job.namespace, "kubealign.spec": spec[:_MAX_TAG_CHARACTERS]}
        run = str(self._client.create_run(experiment_id, run_name=job.name, tags=tags).info.run_id)
        draft = folder / f"{_RUN_ID_FILE}.draft"
        draft.write_text(run)
        draft.replace(folder / _RUN_ID_FILE)
        return run
