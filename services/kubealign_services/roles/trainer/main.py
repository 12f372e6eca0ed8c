"""Trainer process of the policy: `python -m kubealign_services.roles.trainer.main SETTINGS.json`."""

import sys
from collections.abc import Sequence

from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.sections.rollout import EXTERNAL_ENGINES, ReferencePlacement
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.algorithms.contract import Algorithm, Objective, ScoreAlgorithm
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.data.prepared import PreparedJob, load_prepared
from kubealign_services.roles.trainer.reference import AdapterOffLogprobsCommand, ReferenceLogprobsCommand
from kubealign_services.roles.trainer.servicer import TrainerServicer
from kubealign_services.roles.trainer.weight_publication import PublishWeightsCommand
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.training.commands.command_executor import StepPlan
from kubealign_services.training.commands.server import Handler, core_handlers, make_handler
from kubealign_services.training.commands.shared_accelerator import (
    Accelerator,
    ExclusiveAccelerator,
    SharedAccelerator,
)
from kubealign_services.training.commands.trained_model import TrainedModelProcess
from kubealign_services.training.contract import FrozenBackend, Head, TrainingBackend
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.send.servicer import WeightsSenderServicer
from kubealign_services.weights.transfer.collective.sender import BroadcastSender, make_broadcast_sender
from kubealign_services.weights.verify.canary import Canary, canary_length


async def serve(context: ProcessContext, shared_accelerator: SharedAccelerator | None = None) -> None:
    """Serve until stopped; ranks above 0 follow rank 0 until it ends.

    Args:
        shared_accelerator: Accelerator that another component of this process uses too; None: the trainer
            uses it alone.
    """
    accelerator = shared_accelerator or ExclusiveAccelerator()
    settings, spec = context.settings, context.job.spec
    prepared = load_prepared(settings.run_dir)
    process = TrainedModelProcess(context, "trainer", spec.effective_trainer)
    process.log_learning_rate(spec.policy_learning_rate)
    core = process.create_core(
        accelerator.wrap_create(lambda: _create_backend(process, prepared)),
        _create_objective(make_algorithm(spec.algorithm), spec.reward_score_names),
        StepPlan(
            epochs=getattr(spec.algorithm.value, "epochs_per_step", 1),
            minibatch_sequences=getattr(spec.algorithm.value, "minibatch_sequences", None),
        ),
    )
    handlers: dict[str, Handler] = core_handlers(core)
    publisher: WeightsPublisher | None = None
    broadcasts: BroadcastSender | None = None
    senders: list[WeightsSenderServicer] = []
    rollout = spec.effective_rollout
    if rollout is not None:
        precisions = [spec.trainer.backend.value.precision, rollout.engine.value.effective_precision]
        engine = rollout.engine
        canary = Canary.choose(
            spec.seed,
            len(prepared.tokenizer),
            precisions,
            canary_length(prepared.report.context),
            external_engine=engine.member in EXTERNAL_ENGINES,
        )
        publisher = WeightsPublisher(
            settings.shared_memory,
            settings.advertise or settings.listen,
            rollout.refit.transport,
            rank=settings.rank,
            encoding=rollout.refit.encoding,
        )
        broadcasts = make_broadcast_sender(settings, publisher, rollout)
        senders = [WeightsSenderServicer(publisher, rollout.refit.fan_out, broadcasts)]
        handlers["PublishWeights"] = make_handler(
            refit_pb2.PublishWeightsRequest,
            PublishWeightsCommand(core, canary, publisher, settings.rank, settings.world_size),
        )
    reference = spec.effective_reference
    if reference is not None and reference.placement is ReferencePlacement.WITH_TRAINER:
        frozen = await context.compute(_load_reference, process, prepared, accelerator)
        handlers["ReferenceLogprobs"] = make_handler(
            training_pb2.ForwardRequest, ReferenceLogprobsCommand(core, frozen)
        )
    elif reference is not None and reference.placement is ReferencePlacement.ADAPTER_OFF:
        handlers["ReferenceLogprobs"] = make_handler(
            training_pb2.ForwardRequest, AdapterOffLogprobsCommand(core)
        )
    try:
        await process.serve(accelerator.wrap_handlers(handlers), TrainerServicer, senders)
    finally:
        if broadcasts is not None:
            broadcasts.close()
        if publisher is not None:
            publisher.close()


def _load_reference(
    process: TrainedModelProcess, prepared: PreparedJob, accelerator: Accelerator
) -> FrozenBackend:
    """Load the reference that the trainer hosts and offload it."""
    with accelerator.hold("loading the reference"):
        frozen = process.load_frozen(prepared.model_folder("reference"), Head.LANGUAGE_MODEL)
        frozen.offload()
    return frozen


def _create_objective(algorithm: Algorithm, scores: Sequence[str]) -> Objective:
    """Return the training objective of the algorithm."""
    if isinstance(algorithm, ScoreAlgorithm):
        return algorithm.score_objective(scores)
    return algorithm.policy_objective()


def _create_backend(process: TrainedModelProcess, prepared: PreparedJob) -> TrainingBackend:
    """Create the training backend of the policy."""
    spec = process.context.job.spec
    algorithm = spec.algorithm.value
    steps = prepared.total_steps(spec)
    warmup = getattr(algorithm, "critic_warmup_steps", 0)
    pooling = _head_pooling(spec)
    return process.create_backend(
        prepared.model_folder("policy"),
        Head.LANGUAGE_MODEL if pooling is None else Head.SCORE,
        total_updates=max(1, steps - warmup) * algorithm.updates_per_step,
        pooling=pooling,
        scores=spec.reward_score_names,
    )


def _head_pooling(spec: AlignmentJobSpec) -> HeadPooling | None:
    """Return the pooling in the config of the reward model that is trained; None: none is trained."""
    algorithm = spec.algorithm.reward_model
    if algorithm is None:
        return None
    steps = getattr(spec.data.value.format.value, "steps", None)
    return HeadPooling(algorithm.head_pooling, None if steps is None else steps.separator)


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
