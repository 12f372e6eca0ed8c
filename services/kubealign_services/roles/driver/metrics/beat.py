"""Heartbeat payload of the driver: the current wait and the number of outstanding requests."""

import time
from typing import Any

from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.metrics.progress import ProgressTracker
from kubealign_services.roles.driver.metrics.report import MetricsReport

#: Heartbeat field -> metric of the latest step.
_STEP_METRICS = {
    "staleness": "rollout/staleness",
    "refit_seconds": "seconds/refit",
    "refit_bytes": "refit/bytes",
    "refit_workers": "refit/workers",
    "tokens_per_second": "tokens_per_second",
    "step_seconds": "seconds/step",
}


def heartbeat_payload(progress: ProgressTracker, collector: RolloutCollector, report: MetricsReport) -> dict[str, Any]:
    """Return the heartbeat payload (docs/metrics.md). Metrics that the latest step did not measure are left
    out.
    """
    step_metrics = {
        name: report.latest_metrics[metric] for name, metric in _STEP_METRICS.items() if metric in report.latest_metrics
    }
    return {
        "step": progress.step,
        "fence": progress.fence,
        "weight_version": progress.weight_version,
        "waiting_for": progress.waiting_for,
        "seconds_since_step": round(time.monotonic() - report.latest_step_time, 1),
        **collector.count_outstanding(),
        **step_metrics,
    }
