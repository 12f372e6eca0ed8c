"""Trainer process of the policy: `python -m kubealign_services.trainer.main SETTINGS.json`."""

import sys
from collections.abc import Sequence

from kubealign.spec.rollout import ReferencePlacement
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.algorithms.contract import Algorithm, Objective, ScoreAlgorithm
from kubealign_services.algorithms.loading import make_algorithm
from kubealign_services.data.prepared import Prepared, load_prepared
from kubealign_services.process.context import Context
from kubealign_services.process.run import run
from kubealign_services.refit.broadcast_sender import BroadcastSender, broadcast_sender
from kubealign_services.refit.canary import Canary
from kubealign_services.refit.publisher import WeightsPublisher
from kubealign_services.refit.servicer import WeightsSenderServicer
from kubealign_services.trainer.publishing import WeightsCommand
from kubealign_services.trainer.reference import AdapterOffCommand, ReferenceCommand
from kubealign_services.trainer.servicer import TrainerServicer
from kubealign_services.training.backends import create_backend, load_frozen
from kubealign_services.training.contract import FrozenBackend, Head, TrainingBackend
from kubealign_services.training.core import StepPlan, TrainingCore
from kubealign_services.training.serving import Handler, core_handlers, handler, serve_group
from kubealign_services.training.shared_accelerator import Accelerator, OwnAccelerator, SharedAccelerator


async def serve(context: Context, shared: SharedAccelerator | None = None) -> None:
    """Serve until stopped; ranks above 0 follow rank 0 until it ends.

    Args:
        shared_accelerator: Accelerator that another component of this process uses too; None: the trainer
            uses it alone.
    """
    accelerator = shared or OwnAccelerator()
    settings, spec = context.settings, context.job.spec
    prepared = load_prepared(settings.run_dir)
    algorithm = make_algorithm(spec.algorithm)
    core = TrainingCore(
        create=accelerator.making(lambda: _backend(context, prepared)),
        objective=_objective(algorithm, spec.learned_scores),
        plan=StepPlan(
            epochs=getattr(spec.algorithm.value, "epochs_per_step", 1),
            minibatch_sequences=getattr(spec.algorithm.value, "minibatch_sequences", None),
        ),
        seed=spec.seed,
        role="trainer",
        world_size=settings.world_size,
    )
    handlers: dict[str, Handler] = core_handlers(core)
    publisher: WeightsPublisher | None = None
    broadcasts: BroadcastSender | None = None
    senders: list[WeightsSenderServicer] = []
    rollout = spec.effective_rollout
    if rollout is not None:
        precisions = [spec.trainer.backend.value.precision, rollout.engine.value.precision]
        canary = Canary.choose(spec.seed, len(prepared.tokenizer), precisions)
        publisher = WeightsPublisher(
            settings.shared_memory,
            settings.advertise or settings.listen,
            rollout.refit.transport,
            rank=settings.rank,
            encoding=rollout.refit.encoding,
        )
        broadcasts = broadcast_sender(settings, publisher, rollout)
        senders = [WeightsSenderServicer(publisher, rollout.refit.fan_out, broadcasts)]
        handlers["PublishWeights"] = handler(
            refit_pb2.PublishWeightsRequest,
            WeightsCommand(core, canary, publisher, settings.rank, settings.world_size),
        )
    reference = spec.effective_reference
    if reference is not None and reference.placement is ReferencePlacement.WITH_TRAINER:
        frozen = await context.compute(_reference, context, prepared, accelerator)
        handlers["ReferenceLogprobs"] = handler(training_pb2.ForwardRequest, ReferenceCommand(core, frozen))
    elif reference is not None and reference.placement is ReferencePlacement.ADAPTER_OFF:
        handlers["ReferenceLogprobs"] = handler(training_pb2.ForwardRequest, AdapterOffCommand(core))
    try:
        await serve_group(context, spec.trainer, accelerator.leased(handlers), TrainerServicer, senders)
    finally:
        if broadcasts is not None:
            broadcasts.close()
        if publisher is not None:
            publisher.close()


def _reference(context: Context, prepared: Prepared, accelerator: Accelerator) -> FrozenBackend:
    """Load the reference that the trainer hosts and offload it."""
    settings = context.settings
    with accelerator.held("loading the reference"):
        frozen = load_frozen(
            prepared.model("reference"),
            Head.LANGUAGE_MODEL,
            context.job.spec.trainer,
            rank=settings.rank,
            world_size=settings.world_size,
        )
        frozen.offload()
    return frozen


def _objective(algorithm: Algorithm, scores: Sequence[str]) -> Objective:
    """Return the training objective of the algorithm."""
    if isinstance(algorithm, ScoreAlgorithm):
        return algorithm.score_objective(scores)
    return algorithm.policy_objective()


def _backend(context: Context, prepared: Prepared) -> TrainingBackend:
    """Create the training backend of the policy."""
    spec = context.job.spec
    algorithm = spec.algorithm.value
    warmup = getattr(algorithm, "critic_warmup_steps", 0)
    pooling = getattr(algorithm, "pooling", None)
    return create_backend(
        prepared.model("policy"),
        Head.LANGUAGE_MODEL if pooling is None else Head.SCORE,
        spec.trainer,
        total_updates=max(1, spec.max_steps - warmup) * algorithm.updates_per_step,
        rank=context.settings.rank,
        world_size=context.settings.world_size,
        seed=spec.seed,
        pooling=None if pooling is None else pooling.value,
        scores=spec.learned_scores,
    )


def main(argv: list[str]) -> int:
    return run(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
