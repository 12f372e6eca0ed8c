"""Advantages of on-policy distillation by hand, and its gradient against that of the divergence itself."""

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.online.on_policy_distillation import OnPolicyDistillationAlgorithm
from kubealign_services.batch.packed import Batch, pack

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
