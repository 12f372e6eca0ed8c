"""Tracker that writes to an MLflow run."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kubealign.spec.trackers import Mlflow
from kubealign_services.trackers.contract import Ending, TrackedJob

_ID = "run-id"
#: Limits of MLflow servers: metrics in one call, and characters of a tag's value.
_BATCH, _LONGEST_TAG = 1000, 5000
#: Characters that are not allowed in a metric's name.
_REFUSED = re.compile(r"[^-\w./ ]")
_STATUS = {Ending.SUCCEEDED: "FINISHED", Ending.FAILED: "FAILED", Ending.STOPPED: "KILLED"}


class MlflowWriter:
    """Writes one MLflow run for the job across its restarts: the run id is kept in the tracker's folder.

    The metrics of a repeated step are added with a later time. Raises the library's exceptions, such as a
    server that does not answer.
    """

    def __init__(self, job: TrackedJob, spec: Mlflow, folder: Path) -> None:
        if spec.tracking_uri is None:
            # The library requires an explicit opt-in to the file store, which needs no database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=spec.tracking_uri or (folder / "mlruns").as_uri())
        self._run = self._resumed(folder) or self._begun(job, spec.experiment, folder)

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [
            Metric(_REFUSED.sub("_", name), value, now, step)
            for name, value in {**metrics, "fence": float(fence)}.items()
        ]
        for begin in range(0, len(batch), _BATCH):
            self._client.log_batch(self._run, metrics=batch[begin : begin + _BATCH])

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run, _STATUS[ending])

    def _resumed(self, folder: Path) -> str | None:
        path = folder / _ID
        if not path.exists():
            return None
        run = path.read_text()
        self._client.update_run(run, status="RUNNING")
        return run

    def _begun(self, job: TrackedJob, experiment: str, folder: Path) -> str:
        existing = self._client.get_experiment_by_name(experiment)
        if existing is None:
            experiment_id = self._client.create_experiment(experiment)
        else:
            experiment_id = existing.experiment_id
        spec = yaml.safe_dump(dict(job.spec), sort_keys=False, allow_unicode=True)
        tags = {"kubealign.namespace": job.namespace, "kubealign.spec": spec[:_LONGEST_TAG]}
        run = str(self._client.create_run(experiment_id, run_name=job.name, tags=tags).info.run_id)
        draft = folder / f"{_ID}.draft"
        draft.write_text(run)
        draft.replace(folder / _ID)
        return run
