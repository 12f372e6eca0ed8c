"""Figures as a run of MLflow."""

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
#: What its servers take in one call, and in the value of a tag.
_BATCH, _LONGEST_TAG = 1000, 5000
#: What may stand in a figure's name.
_REFUSED = re.compile(r"[^-\w./ ]")
_STATUS = {Ending.SUCCEEDED: "FINISHED", Ending.FAILED: "FAILED", Ending.STOPPED: "KILLED"}


class MlflowTracker:
    """One run for the job, whatever restarts it has: its id is kept in the tracker's folder.

    A step that is done again stands beside its first try, with a later time. Raises what the library raises,
    such as that the server does not answer.
    """

    def __init__(self, job: TrackedJob, spec: Mlflow, folder: Path) -> None:
        if spec.tracking_uri is None:
            # The library wants to be told that files are meant: they need no database beside the job.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=spec.tracking_uri or (folder / "mlruns").as_uri())
        self._run = self._resumed(folder) or self._begun(job, spec.experiment, folder)

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        figures = [
            Metric(_REFUSED.sub("_", name), value, now, step)
            for name, value in {**metrics, "fence": float(fence)}.items()
        ]
        for begin in range(0, len(figures), _BATCH):
            self._client.log_batch(self._run, metrics=figures[begin : begin + _BATCH])

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
        held = self._client.get_experiment_by_name(experiment)
        experiment_id = self._client.create_experiment(experiment) if held is None else held.experiment_id
        spec = yaml.safe_dump(dict(job.spec), sort_keys=False, allow_unicode=True)
        tags = {"kubealign.namespace": job.namespace, "kubealign.spec": spec[:_LONGEST_TAG]}
        run = str(self._client.create_run(experiment_id, run_name=job.name, tags=tags).info.run_id)
        draft = folder / f"{_ID}.draft"
        draft.write_text(run)
        draft.replace(folder / _ID)
        return run
