"""The policy's trainer: `python -m kubealign_services.trainer.main SETTINGS.json`."""

import sys
from collections.abc import Sequence

from kubealign.spec.rollout import ReferencePlacement
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.algorithms.contract import Algorithm, Objective, ScoreAlgorithm
from kubealign_services.algorithms.loading import make_algorithm
from kubealign_services.data.prepared import Prepared, load_prepared
from kubealign_services.process.context import Context
from kubealign_services.process.run import run
from kubealign_services.refit.canary import Canary
from kubealign_services.refit.publisher import WeightsPublisher
from kubealign_services.trainer.publishing import WeightsCommand
from kubealign_services.trainer.reference import AdapterOffCommand, ReferenceCommand
from kubealign_services.trainer.servicer import TrainerServicer
from kubealign_services.training.backends import create_backend
from kubealign_services.training.contract import Head, TrainingBackend
from kubealign_services.training.core import StepPlan, TrainingCore
from kubealign_services.training.serving import Handler, core_handlers, handler, serve_group
from kubealign_services.training.torch_backend.frozen import FrozenModel


async def serve(context: Context) -> None:
    """Serve until stopped; ranks above 0 follow rank 0 until it ends."""
    settings, spec = context.settings, context.job.spec
    prepared = load_prepared(settings.run_dir)
    algorithm = make_algorithm(spec.algorithm)
    core = TrainingCore(
        create=lambda: _backend(context, prepared),
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
    rollout = spec.effective_rollout
    if rollout is not None:
        precisions = [spec.trainer.backend.value.precision, rollout.engine.value.precision]
        canary = Canary.choose(spec.seed, len(prepared.tokenizer), precisions)
        if settings.rank == 0:
            address = settings.advertise or settings.listen
            publisher = WeightsPublisher(settings.shared_memory, address, rollout.refit.transport)
        handlers["PublishWeights"] = handler(
            refit_pb2.PublishWeightsRequest, WeightsCommand(core, canary, publisher)
        )
    reference = spec.effective_reference
    if reference is not None and reference.placement is ReferencePlacement.WITH_TRAINER:
        backend = spec.trainer.backend.value
        frozen = await context.compute(
            FrozenModel.load,
            prepared.model("reference"),
            Head.LANGUAGE_MODEL,
            backend.precision,
            backend.microbatch_tokens,
            settings.rank,
        )
        handlers["ReferenceLogprobs"] = handler(training_pb2.ForwardRequest, ReferenceCommand(core, frozen))
    elif reference is not None and reference.placement is ReferencePlacement.ADAPTER_OFF:
        handlers["ReferenceLogprobs"] = handler(training_pb2.ForwardRequest, AdapterOffCommand(core))
    try:
        await serve_group(
            context, spec.trainer, handlers, lambda commander: TrainerServicer(commander, publisher)
        )
    finally:
        if publisher is not None:
            publisher.close()


def _objective(algorithm: Algorithm, scores: Sequence[str]) -> Objective:
    if isinstance(algorithm, ScoreAlgorithm):
        return algorithm.score_objective(scores)
    return algorithm.policy_objective()


def _backend(context: Context, prepared: Prepared) -> TrainingBackend:
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
