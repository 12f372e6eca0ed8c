"""Progress of the driver: published to displays, served over gRPC and sent with each heartbeat."""

import time
from collections.abc import Callable
from typing import Any

import grpc

from kubealign.storage_errors import STORAGE_WAIT_PREFIX
from kubealign.v1 import driver_pb2, driver_pb2_grpc
from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.telemetry.read_model_writer import ReadModelWriter

_REPORT_INTERVAL_SECONDS = 1.0
#: Heartbeat field -> metric of the latest step.
_STEP_METRICS = {
    "staleness": "rollout/staleness",
    "refit_seconds": "seconds/refit",
    "refit_bytes": "refit/bytes",
    "refit_workers": "refit/workers",
    "tokens_per_second": "tokens_per_second",
    "step_seconds": "seconds/step",
}


class ProgressTracker:
    """Current fence, step and wait. Wait texts are created and published at most once a second."""

    def __init__(self, max_steps: int | None, read_model: ReadModelWriter, trains: bool = True) -> None:
        """Set up the tracker.

        Args:
            max_steps: Number of steps of the job; None: not known before the data is prepared. Must be set
                before an attempt is reported.
            trains: True if each step produces a version of the weights.
        """
        self.fence = 0
        self.step = 0
        self.waiting_for = ""
        #: 0: not known yet, as in the read model.
        self.max_steps = max_steps or 0
        self._read_model = read_model
        self._trains = trains
        self._last_report = 0.0

    @property
    def weight_version(self) -> int:
        """Version of the newest weights."""
        return self.step if self._trains else 0

    def report_attempt(self, fence: int) -> None:
        """Publish the start of an attempt."""
        self.fence = fence
        self._read_model.set_status(
            phase="Starting", max_steps=self.max_steps, fence=fence, started_at=time.time()
        )

    def report_resume(self, step: int) -> None:
        """Publish the last finished step, from which an attempt goes on."""
        self.step = step
        self._read_model.set_status(phase="Starting", step=step, weight_version=self.weight_version)

    def report_step(self, step: int) -> None:
        """Publish a finished step."""
        self.step, self.waiting_for = step, ""
        self._read_model.set_status(
            phase="Running",
            step=step,
            max_steps=self.max_steps,
            fence=self.fence,
            weight_version=self.weight_version,
            waiting_for="",
        )

    def report_wait(self, text: Callable[[], str]) -> None:
        """Publish the current wait, described by `text`."""
        now = time.monotonic()
        if now - self._last_report >= _REPORT_INTERVAL_SECONDS:
            self._last_report = now
            self.waiting_for = text()
            self._read_model.set_status(phase="Running", waiting_for=self.waiting_for)

    def report_storage_wait(self, cause: str) -> None:
        """Publish that the driver waits until storage takes its files."""
        self.waiting_for = f"{STORAGE_WAIT_PREFIX}{cause}"
        self._read_model.set_status(phase="Running", waiting_for=self.waiting_for)

    def report_end(self, phase: str, message: str = "") -> None:
        """Publish the final phase of the driver."""
        self.waiting_for = ""
        self._read_model.set_status(phase=phase, message=message, waiting_for="")


class DriverServicer(driver_pb2_grpc.DriverServicer):
    """gRPC service Driver."""

    def __init__(self, progress: ProgressTracker) -> None:
        self._progress = progress

    async def Progress(
        self, request: driver_pb2.ProgressRequest, context: grpc.aio.ServicerContext
    ) -> driver_pb2.Progress:
        progress = self._progress
        return driver_pb2.Progress(
            fence=progress.fence,
            step=progress.step,
            max_steps=progress.max_steps,
            waiting_for=progress.waiting_for,
        )


def heartbeat_payload(
    progress: ProgressTracker, collector: RolloutCollector, report: MetricsReport
) -> dict[str, Any]:
    """Return the heartbeat payload (docs/metrics.md).

    Metrics that the latest step did not measure are left out.
    """
    step_metrics = {
        name: report.latest_metrics[metric]
        for name, metric in _STEP_METRICS.items()
        if metric in report.latest_metrics
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
