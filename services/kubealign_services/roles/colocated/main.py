"""Trainer rank that is also a rollout worker.

Start it with `python -m kubealign_services.roles.colocated.main SETTINGS.json`. Trainer and worker
communicate over gRPC and the message bus, as in separate processes. They share the accelerator through a
lock; see docs/placement.md.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from kubealign.process_settings import Role
from kubealign.spec.sections.engines import Engine
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign_services.generation.contract import Generator
from kubealign_services.generation.shared_accelerator import (
    GENERATION_TENANT,
    EngineTenant,
    SharedAcceleratorEngine,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.offloadable_runner import OffloadableModelRunner
from kubealign_services.roles.colocated.run_together import run_together
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.main import serve as serve_worker
from kubealign_services.roles.rollout.token_counter import make_token_counter
from kubealign_services.roles.trainer.main import serve as serve_trainer
from kubealign_services.runtime.offload.accelerator_lock import AcceleratorLock
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.training.commands.shared_accelerator import (
    TRAINING,
    SharedAccelerator,
    TrainingTenant,
)
from kubealign_services.training.torch_backend.precision import compute_device, compute_dtype


async def serve(context: ProcessContext) -> None:
    """Train and generate until stopped. The worker of rank N is named rollout-N."""
    rank = context.settings.rank
    training, generation = TrainingTenant(), EngineTenant()
    lease = AcceleratorLock(
        {TRAINING: training, GENERATION_TENANT: generation}, context.job.spec.trainer.step_timeout_seconds
    )

    @asynccontextmanager
    async def opened(worker: ProcessContext, engine: Engine, folder: Path) -> AsyncIterator[Generator]:
        if engine.torch is None:
            raise PermanentFailure(
                f"rollout.placement is WithTrainer: engine {engine.member} is not supported, use torch"
            )
        records_routing = context.job.spec.rollout.routing_replay
        shared_engine = await worker.compute(
            _create_engine, folder, engine.torch, rank, lease, generation, records_routing
        )
        yield SteppedGenerator(
            shared_engine, worker.compute_within_deadline, make_token_counter(worker.metrics)
        )

    worker = context.sub_context(f"{Role.ROLLOUT}-{rank}", Role.ROLLOUT)
    await run_together(
        serve_trainer(context, SharedAccelerator(lease, training)),
        serve_worker(worker, opened),
        # The other ranks follow rank 0 in a thread that cannot be cancelled.
        graceful=rank == 0,
    )


def _create_engine(
    folder: Path,
    spec: EngineSpec,
    rank: int,
    lock: AcceleratorLock,
    tenant: EngineTenant,
    records_routing: bool,
) -> SharedAcceleratorEngine:
    """Create the engine on the accelerator of the trainer's rank, in the worker's thread."""
    device = compute_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)

    def passes(config: Any) -> OffloadableModelRunner:
        tenant.memory = movable = OffloadableModelRunner(
            CausalModel(config, compute_dtype(spec.effective_precision), device)
        )
        return movable

    with lock.hold(GENERATION_TENANT, "creating the engine"):
        engine = TorchRolloutEngine.with_runner(folder, spec, passes, records_routing)
        return SharedAcceleratorEngine(engine, lock, tenant)


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
