"""Divergence measured within the step equals the one measured before it."""

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign.spec.algorithms import KLEstimator
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch, pack

MASK = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 1])


def batch_and_logprobs(old: bool) -> tuple[Batch, torch.Tensor]:
    batch = pack([[1, 2, 3], [4, 5], [6, 7, 8, 9, 1]], ["a", "b", "c"])
    logprobs = -torch.arange(1.0, 11.0, dtype=torch.float64) / 4 * MASK
    batch.token_columns = {
        "loss_mask": MASK,
        "behaviour_logprobs": logprobs.clone(),
        "reference_logprobs": logprobs + 0.3 * torch.cos(torch.arange(10.0, dtype=torch.float64)) * MASK,
    }
    if old:
        batch.token_columns["old_logprobs"] = logprobs.clone()
    batch.sequence_columns = {
        "rewards": torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64),
        "group": torch.tensor([0, 0, 0]),
        "truncated": torch.tensor([0, 1, 0]),
    }
    return batch, logprobs


def grpo(estimator: KLEstimator, **changes: object) -> spec.Algorithm:
    entry = {
        "promptsPerStep": 1,
        "samplesPerPrompt": 3,
        "maskTruncated": True,
        "kl": {"placement": "Loss", "estimator": estimator.value, "fixed": {"coefficient": 0.2}},
        **changes,
    }
    return spec.Algorithm.model_validate({"grpo": entry})


@pytest.mark.parametrize("estimator", KLEstimator)
def test_in_step_kl_equals_a_separate_pass(estimator: KLEstimator) -> None:
    algorithm = make_algorithm(grpo(estimator))
    assert not algorithm.needs_old_logprobs and algorithm.needs_reference
    result = []
    for old in (True, False):
        batch, logprobs = batch_and_logprobs(old)
        metrics = algorithm.advantages(batch, {})
        objective = algorithm.policy_objective()
        objective.prepare(batch)
        leaf = logprobs.clone().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        for part, places in ((batch.select([0, 1]), slice(0, 5)), (batch.select([2]), slice(5, 10))):
            terms = objective.loss(ModelOutputs(logprobs=leaf[places], entropy=leaf[places] * 0), part)
            total = total + terms.loss
            for name, value in terms.sums.items():
                metrics[name] = metrics.get(name, 0.0) + float(value)
        (gradient,) = torch.autograd.grad(total, leaf)
        result.append((metrics, float(total.detach()), gradient))
    (with_pass, loss, gradient), (within, same_loss, same_gradient) = result
    assert with_pass.keys() == within.keys() and {"kl/reference", "kl/clamped_fraction"} <= within.keys()
    assert within == pytest.approx(with_pass, abs=1e-12)
    assert same_loss == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(same_gradient, gradient, atol=1e-12, rtol=0)


def test_the_divergence_by_hand() -> None:
    algorithm = make_algorithm(grpo(KLEstimator.K1))
    batch, logprobs = batch_and_logprobs(old=False)
    algorithm.advantages(batch, {})
    objective = algorithm.policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=logprobs, entropy=logprobs * 0), batch)
    # Six response tokens of three responses; log p - log p_ref is -0.3 cos(position). The truncated response,
    # which is not learned, diverges as well.
    total = -0.3 * sum(float(torch.cos(torch.tensor(float(position)))) for position in (1, 2, 4, 7, 8, 9))
    assert float(terms.sums["kl/reference"]) == pytest.approx(total / 6, abs=1e-6)
    assert float(terms.sums["kl/reference_sequence"]) == pytest.approx(total / 3, abs=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"kl": {"placement": "Reward", "fixed": {"coefficient": 0.2}}},
        {"epochsPerStep": 2},
    ],
)
def test_old_logprobs_are_requested_where_needed(changes: dict[str, object]) -> None:
    assert make_algorithm(grpo(KLEstimator.K3, **changes)).needs_old_logprobs


@pytest.mark.parametrize("changes", [{"importance": {}}, {"maxStaleness": 2}])
def test_the_step_s_own_pass_gives_the_proximal_policy(changes: dict[str, object]) -> None:
    assert not make_algorithm(grpo(KLEstimator.K3, **changes)).needs_old_logprobs


def test_the_clamped_share_of_the_response_tokens_is_reported() -> None:
    """One of six response tokens is 50 nats less likely under the policy than under the reference."""
    batch, _ = batch_and_logprobs(old=True)
    batch.token_columns["reference_logprobs"][4] += 50.0
    metrics = make_algorithm(grpo(KLEstimator.K3)).advantages(batch, {})
    assert metrics["kl/clamped_fraction"] == pytest.approx(1 / 6)
