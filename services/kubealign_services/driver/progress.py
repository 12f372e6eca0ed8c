"""How far the driver is and what it waits for: told to displays, and to whoever asks over the wire."""

import time
from collections.abc import Callable

import grpc

from kubealign.v1 import driver_pb2, driver_pb2_grpc
from kubealign_services.telemetry.read_model import ReadModel

_TELL_SECONDS = 1.0


class Progress:
    """The newest of fence, step and wait. Texts are made, and told to the read model, once a second at
    most."""

    def __init__(self, max_steps: int, read_model: ReadModel, trains: bool = True) -> None:
        """trains: whether each step makes a version of the weights."""
        self.fence = 0
        self.step = 0
        self.waiting_for = ""
        self.max_steps = max_steps
        self._read_model = read_model
        self._trains = trains
        self._told = 0.0

    @property
    def version(self) -> int:
        """Of the newest weights."""
        return self.step if self._trains else 0

    def begin(self, fence: int) -> None:
        self.fence = fence
        self._read_model.status(
            phase="Starting", max_steps=self.max_steps, fence=fence, started_at=time.time()
        )

    def reached(self, step: int) -> None:
        """A step is done: nothing is waited for."""
        self.step, self.waiting_for = step, ""
        self._read_model.status(
            phase="Running",
            step=step,
            max_steps=self.max_steps,
            fence=self.fence,
            weight_version=self.version,
            waiting_for="",
        )

    def waits(self, text: Callable[[], str]) -> None:
        """What is waited for at this moment."""
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            self.waiting_for = text()
            self._read_model.status(phase="Running", waiting_for=self.waiting_for)

    def ended(self, phase: str, message: str = "") -> None:
        self.waiting_for = ""
        self._read_model.status(phase=phase, message=message, waiting_for="")


class DriverServicer(driver_pb2_grpc.DriverServicer):
    """The Driver service."""

    def __init__(self, progress: Progress) -> None:
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
