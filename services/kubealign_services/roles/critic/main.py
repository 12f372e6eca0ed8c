"""Critic process: `python -m kubealign_services.roles.critic.main SETTINGS.json`."""

import sys

from kubealign.spec.sections.rewards import RewardPlacement
from kubealign.v1 import training_pb2
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.data.models.reward_roles import reward_roles
from kubealign_services.data.prepared import load_prepared
from kubealign_services.roles.critic.rewards import ScoreCommand
from kubealign_services.roles.critic.servicer import CriticServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.reward_models import build_reward
from kubealign_services.training.commands.command_executor import StepPlan
from kubealign_services.training.commands.server import Handler, core_handlers, make_handler
from kubealign_services.training.commands.trained_model import TrainedModelProcess
from kubealign_services.training.contract import Head


async def serve(context: ProcessContext) -> None:
    """Serve until stopped; ranks above 0 follow rank 0 until it ends."""
    spec = context.job.spec
    critic = spec.effective_critic
    objective = make_algorithm(spec.algorithm).value_objective()
    if critic is None or objective is None:
        raise PermanentFailure(f"{spec.algorithm.member} has no critic")
    prepared = load_prepared(context.settings.run_dir)
    steps = prepared.total_steps(spec)
    process = TrainedModelProcess(context, "critic", critic)
    process.log_learning_rate(spec.critic_learning_rate)
    core = process.create_core(
        lambda: process.create_backend(
            prepared.model_folder("critic"),
            Head.VALUE,
            total_updates=steps * spec.algorithm.value.updates_per_step,
            head_init=critic.head_init,
            attributes=spec.critic_head_attributes,
        ),
        objective,
        StepPlan(spec.algorithm.value.epochs_per_step, spec.algorithm.value.minibatch_sequences),
    )
    handlers: dict[str, Handler] = core_handlers(core)
    rewards = {
        reward.name: build_reward(
            await context.compute(
                process.load_frozen, prepared.model_folder(*reward_roles(reward)), Head.SCORE
            ),
            reward.attributes,
        )
        for reward in spec.rewards
        if reward.placement is RewardPlacement.WITH_CRITIC
    }
    handlers["Score"] = make_handler(training_pb2.ForwardRequest, ScoreCommand(core, rewards))
    await process.serve(handlers, CriticServicer)


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
