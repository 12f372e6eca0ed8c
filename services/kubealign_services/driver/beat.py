"""Heartbeat payload of the driver: the current wait and the number of outstanding requests."""

import time
from typing import Any

from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.progress import Progress
from kubealign_services.driver.report import Report

#: Heartbeat field -> metric of the latest step.
_OF_THE_STEP = {
    "staleness": "rollout/staleness",
    "refit_seconds": "seconds/refit",
    "refit_bytes": "refit/bytes",
    "refit_workers": "refit/workers",
    "tokens_per_second": "tokens_per_second",
    "step_seconds": "seconds/step",
}


def beat(progress: Progress, exchange: Exchange, report: Report) -> dict[str, Any]:
    """Return the heartbeat payload (docs/metrics.md). Metrics that the latest step did not measure are left
    out.
    """
    step_metrics = {
        name: report.newest[metric] for name, metric in _OF_THE_STEP.items() if metric in report.newest
    }
    return {
        "step": progress.step,
        "fence": progress.fence,
        "weight_version": progress.version,
        "waiting_for": progress.waiting_for,
        "seconds_since_step": round(time.monotonic() - report.newest_at, 1),
        **exchange.outstanding(),
        **step_metrics,
    }
