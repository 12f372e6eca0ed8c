"""Critic process: `python -m kubealign_services.roles.critic.main SETTINGS.json`."""

import sys
from functools import partial

from kubealign.spec.sections.rewards import RewardPlacement
from kubealign.v1 import training_pb2
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.data.models.reward_roles import reward_roles
from kubealign_services.data.prepared import PreparedJob, load_prepared
from kubealign_services.roles.critic.rewards import ScoreCommand
from kubealign_services.roles.critic.servicer import CriticServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.reward_models import build_reward
from kubealign_services.training.backends import create_backend, load_frozen
from kubealign_services.training.commands.core import StepPlan, TrainingCore
from kubealign_services.training.commands.server import Handler, core_handlers, make_handler, serve_group
from kubealign_services.training.contract import Head, TrainingBackend


async def serve(context: ProcessContext) -> None:
    """Serve until stopped; ranks above 0 follow rank 0 until it ends."""
    settings, spec = context.settings, context.job.spec
    critic = spec.effective_critic
    algorithm = make_algorithm(spec.algorithm)
    objective = algorithm.value_objective()
    if critic is None or objective is None:
        raise PermanentFailure(f"{spec.algorithm.member} has no critic")
    prepared = load_prepared(settings.run_dir)
    core = TrainingCore(
        create=lambda: _create_backend(context, prepared),
        objective=objective,
        plan=StepPlan(spec.algorithm.value.epochs_per_step, spec.algorithm.value.minibatch_sequences),
        seed=spec.seed,
        role="critic",
        world_size=settings.world_size,
    )
    handlers: dict[str, Handler] = core_handlers(core)
    rewards = {
        reward.name: build_reward(
            await context.compute(
                partial(load_frozen, rank=settings.rank, world_size=settings.world_size),
                prepared.model_folder(*reward_roles(reward)),
                Head.SCORE,
                critic,
            ),
            reward.attributes,
        )
        for reward in spec.rewards
        if reward.placement is RewardPlacement.WITH_CRITIC
    }
    handlers["Score"] = make_handler(training_pb2.ForwardRequest, ScoreCommand(core, rewards))
    await serve_group(context, critic, handlers, CriticServicer)


def _create_backend(context: ProcessContext, prepared: PreparedJob) -> TrainingBackend:
    spec = context.job.spec
    critic = spec.effective_critic
    assert critic is not None
    return create_backend(
        prepared.model_folder("critic"),
        Head.VALUE,
        critic,
        total_updates=spec.max_steps * spec.algorithm.value.updates_per_step,
        rank=context.settings.rank,
        world_size=context.settings.world_size,
        seed=spec.seed,
        head_init=critic.head_init,
    )


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
