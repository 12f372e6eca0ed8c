"""What the driver says of itself in each heartbeat: what it waits for, and how much is under way."""

import time
from typing import Any

from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.progress import Progress
from kubealign_services.driver.report import Report

#: Of the newest step's figures, under the names that a heartbeat has for them.
_OF_THE_STEP = {
    "staleness": "rollout/staleness",
    "refit_seconds": "seconds/refit",
    "refit_bytes": "refit/bytes",
    "refit_workers": "refit/workers",
    "tokens_per_second": "tokens_per_second",
    "step_seconds": "seconds/step",
}


def beat(progress: Progress, exchange: Exchange, report: Report) -> dict[str, Any]:
    """See docs/metrics.md. What the newest step has not measured is left out."""
    figures = {
        name: report.newest[figure] for name, figure in _OF_THE_STEP.items() if figure in report.newest
    }
    return {
        "step": progress.step,
        "fence": progress.fence,
        "weight_version": progress.version,
        "waiting_for": progress.waiting_for,
        "seconds_since_step": round(time.monotonic() - report.newest_at, 1),
        **exchange.outstanding(),
        **figures,
    }
