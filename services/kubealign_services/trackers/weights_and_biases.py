"""Figures as a run of Weights & Biases."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubealign.spec.trackers import TrackerMode, WeightsAndBiases
from kubealign_services.trackers.contract import Ending, TrackedJob

_ID = "run-id"
_STEP = "step"


class WeightsAndBiasesTracker:
    """One run for the job, whatever restarts it has: its id is kept in the tracker's folder.

    Figures stand over the figure `step`, not over the library's own, which cannot go back: a step that is
    done again stands beside its first try, with a higher `fence`. Raises what the library raises, such as
    that it knows no key.
    """

    def __init__(self, job: TrackedJob, spec: WeightsAndBiases, folder: Path) -> None:
        # A pod's home may not be written to.
        for kind in ("CONFIG", "CACHE", "DATA"):
            os.environ.setdefault(f"WANDB_{kind}_DIR", str(folder / kind.lower()))
        import wandb

        self._wandb: Any = wandb
        settings = {
            "mode": "online" if spec.mode is TrackerMode.ONLINE else "offline",
            # The driver's output and its repository are none of its business.
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
            id=run_id(folder),
            name=job.name,
            group=job.namespace,
            resume="allow",
            dir=str(folder),
            config=dict(job.spec),
            settings=wandb.Settings(**settings),
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        self._run.log({_STEP: step, "fence": fence, **metrics})

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=1 if ending is Ending.FAILED else 0)
        self._wandb.teardown()


def run_id(folder: Path) -> str:
    """The run's id, made when there is none yet."""
    path = folder / _ID
    if not path.exists():
        draft = path.with_suffix(".draft")
        draft.write_text(uuid.uuid4().hex[:16])
        draft.replace(path)
    return path.read_text()
