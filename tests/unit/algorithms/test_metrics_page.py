"""Every metric that an algorithm reports is on the page that explains them."""

import re
from collections.abc import Callable
from pathlib import Path

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Algorithm, ModelOutputs
from kubealign_services.algorithms.grpo import GRPO
from kubealign_services.algorithms.ppo import PPO
from kubealign_services.algorithms.reward_model import RewardModel
from kubealign_services.algorithms.rloo import RLOO
from kubealign_services.algorithms.sft import SFT
from kubealign_services.batch.packed import Batch

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_every_metric_is_explained(make_batch: Callable[..., Batch]) -> None:
    loss = spec.KL(placement=spec.KLPlacement.LOSS, fixed=spec.FixedKL())
    ratings = spec.RewardObjective(regression=spec.Regression())
    algorithms: list[Algorithm] = [
        PPO(spec.PPO(kl=loss)),
        RLOO(spec.RLOO()),
        GRPO(spec.GRPO()),
        SFT(spec.SFT()),
        RewardModel(spec.RewardModel(language_model_coefficient=1)),
        RewardModel(spec.RewardModel(objective=ratings)),
    ]
    reported: set[str] = set()
    for algorithm in algorithms:
        batch = make_batch([2, 3, 1, 2], [0, 0, 1, 1])
        batch.sequence_columns["rating"] = torch.zeros(4, dtype=torch.float64)
        reported |= algorithm.advantages(batch, {}).keys()
        column = batch.token("behaviour_logprobs").clone().requires_grad_()
        for objective in (algorithm.policy_objective(), algorithm.value_objective()):
            if objective is not None:
                objective.prepare(batch)
                terms = objective.loss(ModelOutputs(column, column, column), batch)
                reported |= terms.sums.keys() | terms.maxima.keys()
    explained = set(re.findall(r"`([a-z]+/[a-z_]+)`", PAGE.read_text(encoding="utf-8")))
    assert len(reported) > 20
    assert reported <= explained
