"""Process of one rank of a trained model: what trainer and critic have in common from their settings to their
commands.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubealign.spec.learning_rates import LearningRate
from kubealign.spec.sections.training import HeadInit, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.training.adapters.quantization import (
    QuantizationNotInstalled,
    check_quantization_installed,
)
from kubealign_services.training.backends import create_backend, load_frozen
from kubealign_services.training.commands.command_executor import StepPlan, TrainingCore
from kubealign_services.training.commands.server import CommandDispatcher, Handler, serve_group
from kubealign_services.training.contract import FrozenBackend, Head, TrainingBackend
from kubealign_services.training.files.hf_heads import HeadPooling

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedModelProcess:
    """One rank of a trained model.

    Attributes:
        role: "trainer" or "critic", for the errors and the random numbers of its steps.
        spec: The model's own section of the job's spec.
    """

    context: ProcessContext
    role: str
    spec: Trainer

    def __post_init__(self) -> None:
        """Raise PermanentFailure when a library of the spec is missing, before anything is loaded."""
        try:
            check_quantization_installed(None if self.spec.lora is None else self.spec.lora.quantization)
        except QuantizationNotInstalled as error:
            raise PermanentFailure(f"spec.{self.role}.{error}") from error

    def log_learning_rate(self, rate: LearningRate) -> None:
        """Log the peak learning rate and its origin, on rank 0."""
        if self.context.settings.rank == 0:
            log.info("peak learning rate", extra={"learning_rate": rate.value, "origin": rate.origin})

    def create_core(
        self, create: Callable[[], TrainingBackend], objective: Objective, plan: StepPlan
    ) -> TrainingCore:
        """Return the executor of the driver's commands; arguments as for `TrainingCore`."""
        return TrainingCore(
            create=create,
            objective=objective,
            plan=plan,
            seed=self.context.job.spec.seed,
            role=self.role,
            world_size=self.context.settings.world_size,
        )

    def create_backend(
        self,
        folder: Path,
        head: Head,
        total_updates: int,
        *,
        head_init: HeadInit = HeadInit.ZERO,
        pooling: HeadPooling | None = None,
        scores: Sequence[str] = (),
        attributes: Mapping[str, float] | None = None,
    ) -> TrainingBackend:
        """Create this rank's part of the model; arguments as for `backends.create_backend`."""
        return create_backend(
            folder,
            head,
            self.spec,
            total_updates,
            rank=self.context.settings.rank,
            world_size=self.context.settings.world_size,
            seed=self.context.job.spec.seed,
            head_init=head_init,
            pooling=pooling,
            scores=scores,
            attributes=attributes,
        )

    def load_frozen(self, folder: Path, head: Head) -> FrozenBackend:
        """Load a frozen model that shares the processes of the trained one."""
        settings = self.context.settings
        return load_frozen(folder, head, self.spec, rank=settings.rank, world_size=settings.world_size)

    async def serve(
        self,
        handlers: Mapping[str, Handler],
        servicer: Callable[[CommandDispatcher], object],
        rank_servicers: Sequence[object] = (),
    ) -> None:
        """Serve the commands until stopped; arguments as for `serve_group`."""
        await serve_group(self.context, self.spec, handlers, servicer, rank_servicers)
