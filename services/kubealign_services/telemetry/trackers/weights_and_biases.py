"""Tracker that writes to a Weights & Biases run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign.spec.sections.trackers import TrackerMode, WeightsAndBiasesTracker
from kubealign_services.telemetry.trackers.completions import TABLE
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob, get_or_create_run_id

_STEP_METRIC = "step"


class WeightsAndBiasesWriter:
    """Writes one run for the job across its restarts: the run id is kept in the tracker's folder.

    Metrics are plotted over the metric `step`, not over the library's own step, which cannot go back: a
    repeated step is added with a higher `fence`. Raises the library's exceptions, such as a missing API
    key.
    """

    def __init__(self, job: TrackedJob, spec: WeightsAndBiasesTracker, folder: Path) -> None:
        # The home directory of a pod may be read-only.
        for kind in ("CONFIG", "CACHE", "DATA"):
            os.environ.setdefault(f"WANDB_{kind}_DIR", str(folder / kind.lower()))
        import wandb

        self._wandb: Any = wandb
        settings = {
            "mode": "online" if spec.mode is TrackerMode.ONLINE else "offline",
            # Do not upload the driver's output and code.
            "console": "off",
            "silent": True,
            "disable_git": True,
            "disable_code": True,
        }
        if spec.base_url is not None:
            settings["base_url"] = spec.base_url
        self._run: Any = wandb.init(
            project=spec.project,
            entity=spec.entity,
            id=get_or_create_run_id(folder),
            name=job.name,
            group=job.namespace,
            resume="allow",
            dir=str(folder),
            config=dict(job.spec),
            settings=wandb.Settings(**settings),
        )
        self._run.define_metric(_STEP_METRIC)
        self._run.define_metric("*", step_metric=_STEP_METRIC)

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        self._run.log({_STEP_METRIC: step, "fence": fence, **metrics})

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = list(rows[0])
        table = self._wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])
        name = f"{TABLE}/{rows[0]['purpose']}"
        self._run.log({_STEP_METRIC: step, "fence": rows[0]["fence"], name: table})

    def close(self, outcome: RunOutcome) -> None:
        self._run.finish(exit_code=1 if outcome is RunOutcome.FAILED else 0)
        self._wandb.teardown()
