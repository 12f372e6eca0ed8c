"""Writes to a SwanLab run."""

from typing import Any

import swanlab

_STEP_METRIC = "step"


class SwanLabWriter:
    """Writes one run for the job across its restarts; offline, each driver writes a folder of the same run.

    Metrics are plotted over the metric `step`: SwanLab drops values at a step of its own that is not higher
    than the last one, and a job repeats steps after a rollback.
    """

    def __init__(self, job: dict[str, Any], folder: str, settings: dict[str, Any]) -> None:
        # Neither the machine nor the output of this process is the user's training.
        probe = {"monitor": False, "git": False, "requirements": False}
        self._run = swanlab.init(
            project=settings["project"],
            workspace=settings["workspace"],
            mode=settings["mode"].lower(),
            id=settings["run_id"],
            resume="allow",
            name=job["name"],
            group=job["namespace"],
            config=job["spec"],
            log_dir=folder,
            settings=swanlab.Settings(interactive=False, probe=probe, terminal={"proxy_type": "none"}),
        )
        self._run.define_metric("*", x_axis=_STEP_METRIC, step_sync=False)
        # A step and its validation are two points: over itself, the second would be dropped.
        self._run.define_metric(_STEP_METRIC, x_axis="_step")

    def step(self, step: int, fence: int, metrics: dict[str, float]) -> None:
        swanlab.log({_STEP_METRIC: step, "fence": fence, **metrics})

    def completions(self, step: int, rows: list[dict[str, Any]]) -> None:
        table = swanlab.echarts.Table()
        columns = list(rows[0])
        table.add(columns, [[row[name] for name in columns] for row in rows])
        swanlab.log({_STEP_METRIC: step, f"completions/{rows[0]['purpose']}": table})

    def close(self, outcome: str) -> None:
        if outcome == "Failed":
            swanlab.finish(state="crashed", error="the job failed")
        else:
            swanlab.finish(state="success" if outcome == "Succeeded" else "aborted")
