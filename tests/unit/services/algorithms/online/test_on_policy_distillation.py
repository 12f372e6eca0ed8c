"""Advantages of on-policy distillation by hand, its gradient against that of the divergence itself, and the
loss of a distribution against a slow loop.
"""

import math

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.online.on_policy_distillation import OnPolicyDistillationAlgorithm
from kubealign_services.batch.packed import Batch, pack

KINDS = list(spec.DistillationDivergence)
CENTERED = spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP)


def two_responses(rewards: list[float]) -> Batch:
    """Return responses of two tokens and one to one prompt of one token."""
    batch = pack([[7, 1, 2], [7, 3]], ["0", "1"])
    batch.token_columns |= {
        "loss_mask": torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8),
        "behaviour_logprobs": torch.zeros(5, dtype=torch.float64),
        "old_logprobs": torch.tensor([-9.0, -1.0, -2.0, -9.0, -0.5], dtype=torch.float64),
        "reference_logprobs": torch.tensor([-4.0, -3.0, -0.5, -4.0, -0.7], dtype=torch.float64),
    }
    batch.sequence_columns["rewards"] = torch.tensor(rewards, dtype=torch.float64)
    batch.sequence_columns["group"] = torch.zeros(2, dtype=torch.int64)
    return batch


def test_a_token_has_the_teacher_s_judgement_of_itself_alone() -> None:
    batch = two_responses([0.0, 0.0])
    algorithm = OnPolicyDistillationAlgorithm(spec.OnPolicyDistillationSpec())
    assert algorithm.needs_reference and algorithm.needs_old_logprobs
    metrics = algorithm.advantages(batch, {})
    # log p_teacher - log p: -3 + 1, -0.5 + 2 and -0.7 + 0.5; what follows a token does not count.
    assert batch.token("advantages").tolist() == pytest.approx([0, -2.0, 1.5, 0, -0.2], abs=1e-9)
    # Sums over the responses: 2 - 1.5 = 0.5 nats and 0.2.
    assert metrics["kl/reference_sequence"] == pytest.approx(0.35)
    assert metrics["return/mean"] == pytest.approx(-0.35)


def test_rewards_are_added_to_a_weighted_judgement() -> None:
    batch = two_responses([1.0, 3.0])
    kl = spec.KL(fixed=spec.FixedKL(coefficient=0.5))
    entry = spec.OnPolicyDistillationSpec(samples_per_prompt=2, advantage=CENTERED, kl=kl)
    OnPolicyDistillationAlgorithm(entry).advantages(batch, {})
    # Rewards less their group's mean are -1 and 1.
    expected = [0, -1 - 1.0, -1 + 0.75, 0, 1 - 0.1]
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-9)


def test_the_expected_gradient_is_that_of_the_divergence_from_the_teacher() -> None:
    """Responses of one token, each of the vocabulary in proportion to its probability: the exact expectation
    is compared with torch's gradient of KL(policy || teacher)."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    probabilities = policy.detach().exp()
    divergence = (policy.exp() * (policy - teacher)).sum()
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)

    algorithm = OnPolicyDistillationAlgorithm(spec.OnPolicyDistillationSpec())
    objective = algorithm.policy_objective()
    gradient = torch.zeros_like(logits)
    for token in range(6):
        batch = pack([[7, token]], ["0"])
        old = torch.tensor([0.0, float(probabilities[token].log())], dtype=torch.float64)
        batch.token_columns |= {
            "loss_mask": torch.tensor([0, 1], dtype=torch.uint8),
            "behaviour_logprobs": old,
            "old_logprobs": old,
            "engine_logprobs": old,
            "reference_logprobs": torch.tensor([0.0, float(teacher[token])], dtype=torch.float64),
        }
        batch.sequence_columns |= {
            "rewards": torch.zeros(1, dtype=torch.float64),
            "group": torch.zeros(1, dtype=torch.int64),
        }
        algorithm.advantages(batch, {})
        current = torch.stack([policy[token] * 0, policy[token]])
        outputs = ModelOutputs(logprobs=current, entropy=torch.zeros(2, dtype=torch.float64))
        objective.prepare(batch)
        loss = objective.loss(outputs, batch).loss
        (part,) = torch.autograd.grad(loss, logits, retain_graph=True)
        gradient += probabilities[token] * part
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-9)


def with_candidates(batch: Batch, temperature: float) -> Batch:
    """Return the batch with the teacher's probabilities of three candidates out of five at each token."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn((len(batch.tokens), 5), generator=generator, dtype=torch.float64)
    batch.token_columns["candidates"] = torch.tensor([[4, 0, 2]]).repeat(len(batch.tokens), 1)
    batch.token_columns["candidate_logprobs"] = (logits / temperature).log_softmax(-1)[:, [4, 0, 2]]
    batch.token_columns["engine_logprobs"] = batch.token("old_logprobs")
    return batch


def slow_divergence(p: list[float], q: list[float], kind: str, beta: float) -> float:
    """Compute the divergence between teacher p and student q over candidates and rest, one at a time."""
    total = 0.0
    for a, b in zip([*p, 1 - sum(p)], [*q, 1 - sum(q)], strict=True):
        mixture = beta * a + (1 - beta) * b
        if kind == "Forward":
            total += a * math.log(a / b)
        elif kind == "Reverse":
            total += b * math.log(b / a)
        else:
            total += beta * a * math.log(a / mixture) + (1 - beta) * b * math.log(b / mixture)
    return total


def test_a_distribution_replaces_the_judgement_of_the_sampled_tokens() -> None:
    entry = spec.OnPolicyDistillationSpec(
        samples_per_prompt=2, advantage=CENTERED, distribution=spec.TeacherDistribution()
    )
    algorithm = OnPolicyDistillationAlgorithm(entry)
    assert not algorithm.needs_reference and not algorithm.needs_old_logprobs
    batch = two_responses([1.0, 3.0])
    del batch.token_columns["reference_logprobs"]
    assert "kl/reference" not in algorithm.advantages(batch, {})
    assert batch.token("advantages").tolist() == [0, -1, -1, 0, 1]
    assert "candidate_logprobs" in algorithm.policy_objective().outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_loss_of_a_distribution_and_its_gradient_equal_a_reference_loop(
    kind: spec.DistillationDivergence, temperature: float
) -> None:
    """The policy loss of the rewards is added; without rewards the divergence is the whole loss."""
    beta = 0.3 if kind is spec.DistillationDivergence.JENSEN_SHANNON else None
    entry = spec.OnPolicyDistillationSpec(
        kl=spec.KL(fixed=spec.FixedKL(coefficient=0.5)),
        distribution=spec.TeacherDistribution(
            candidates=3, temperature=temperature, divergence=kind, beta=beta
        ),
    )
    algorithm = OnPolicyDistillationAlgorithm(entry)
    objective = algorithm.policy_objective()
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn((5, 5), generator=generator, dtype=torch.float64, requires_grad=True)
    mask = [0, 1, 1, 0, 1]

    def loss(rewards: list[float]) -> Tensor:
        batch = with_candidates(two_responses(rewards), temperature)
        algorithm.advantages(batch, {})
        objective.prepare(batch)
        sampled = logits.log_softmax(-1)[torch.arange(5), batch.tokens.long() % 5]
        soft = (logits / temperature).log_softmax(-1)[:, [4, 0, 2]]
        outputs = ModelOutputs(
            logprobs=sampled, entropy=torch.zeros(5, dtype=torch.float64), candidate_logprobs=soft
        )
        return objective.loss(outputs, batch).loss

    teacher = with_candidates(two_responses([0.0, 0.0]), temperature).token("candidate_logprobs").exp()

    def slowly(values: Tensor) -> float:
        parts = [
            slow_divergence(
                teacher[token].tolist(),
                [float(values[token].div(temperature).softmax(-1)[index]) for index in (4, 0, 2)],
                kind,
                beta or 0.5,
            )
            for token in range(5)
            if mask[token]
        ]
        return 0.5 * temperature**2 * sum(parts) / 3

    alone = loss([0.0, 0.0])
    assert float(alone.detach()) == pytest.approx(slowly(logits.detach()), abs=1e-9)
    (gradient,) = torch.autograd.grad(alone, logits)
    for position in range(5):
        for column in range(5):
            moved = [logits.detach().clone() for _ in range(2)]
            moved[0][position, column] += 1e-5
            moved[1][position, column] -= 1e-5
            numeric = (slowly(moved[0]) - slowly(moved[1])) / 2e-5
            assert float(gradient[position, column]) == pytest.approx(numeric, abs=1e-9)
    # The ratio is 1 at the old policy, so the policy loss is minus the mean advantage over tokens.
    with_rewards = loss([1.0, 4.0])
    ratios = (logits.log_softmax(-1)[torch.arange(5), torch.tensor([2, 1, 2, 2, 3])]).detach()
    old = two_responses([0.0, 0.0]).token("old_logprobs")
    r = (ratios - old).exp()
    advantages = torch.tensor([0.0, 1.0, 1.0, 0.0, 4.0], dtype=torch.float64)
    policy = -torch.minimum(r * advantages, r.clamp(0.8, 1.2) * advantages).sum() / 3
    assert float((with_rewards - alone).detach()) == pytest.approx(float(policy), abs=1e-9)


def test_truncated_responses_can_be_left_out_of_the_divergence() -> None:
    entry = spec.OnPolicyDistillationSpec(distribution=spec.TeacherDistribution(), mask_truncated=True)
    objective = OnPolicyDistillationAlgorithm(entry).policy_objective()
    batch = with_candidates(two_responses([0.0, 0.0]), 1.0)
    batch.sequence_columns["truncated"] = torch.tensor([0, 1], dtype=torch.uint8)
    objective.prepare(batch)
    assert batch.token("distribution_shares").tolist() == [0, 0.5, 0.5, 0, 0]
