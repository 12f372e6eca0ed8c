"""Distillation: by hand, against a slow loop, and against the KL over a whole vocabulary."""

# mypy: disable-error-code="no-untyped-call"
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.losses.teacher_divergence import (
    LEAST_REST,
    divergence_between,
    log1mexp,
    with_rest,
)
from kubealign_services.algorithms.offline.distillation import DistillationAlgorithm, DistillationObjective
from kubealign_services.batch.packed import Batch, pack

FORWARD, REVERSE = spec.DistillationDivergence.FORWARD, spec.DistillationDivergence.REVERSE
JENSEN_SHANNON = spec.DistillationDivergence.JENSEN_SHANNON


def batch_of(teacher: list[list[float]], mask: list[int] | None = None) -> Batch:
    """Return one sequence with the teacher's probabilities of its candidates at each token."""
    batch = pack([[1] * len(teacher)], ["0"])
    batch.token_columns["loss_mask"] = torch.tensor(mask or [1] * len(teacher), dtype=torch.uint8)
    batch.token_columns["candidate_logprobs"] = torch.tensor(teacher, dtype=torch.float64).log()
    return batch


def objective(**fields: object) -> DistillationObjective:
    return DistillationAlgorithm(spec.DistillationSpec(**fields)).policy_objective()  # type: ignore[arg-type]


def test_values_by_hand() -> None:
    # Two candidates and the rest: the teacher 1/2, 1/4 (rest 1/4), the student 1/4, 1/4 (rest 1/2).
    # Forward: 1/2 log 2 + 1/4 log 1 + 1/4 log 1/2 = 1/4 log 2.
    # Reverse: 1/4 log 1/2 + 1/4 log 1 + 1/2 log 2 = 1/4 log 2.
    # At temperature 3 the loss is 9 times that; half a nat of cross-entropy at 0.2 adds 0.1.
    student = torch.tensor([[0.0, 0.0], [0.25, 0.25]], dtype=torch.float64).log()
    outputs = ModelOutputs(candidate_logprobs=student, logprobs=torch.tensor([9.0, -0.5]).double())
    for divergence in (FORWARD, REVERSE):
        batch = batch_of([[1.0, 1.0], [0.5, 0.25]], mask=[0, 1])
        taught = objective(divergence=divergence, temperature=3.0, cross_entropy_coefficient=0.2)
        taught.prepare(batch)
        terms = taught.loss(outputs, batch)
        assert float(terms.loss) == pytest.approx(9 * math.log(2) / 4 + 0.1)
        figures = {name: float(value) for name, value in terms.sums.items()}
        assert figures == pytest.approx(
            {
                "distillation/loss": 9 * math.log(2) / 4 + 0.1,
                "distillation/kl": math.log(2) / 4,
                "distillation/agreement": 1.0,
                "distillation/teacher_mass": 0.75,
                "distillation/cross_entropy": 0.5,
            }
        )


def test_agreement_compares_the_top_candidates() -> None:
    batch = batch_of([[0.5, 0.25]] * 4)
    student = torch.tensor([[0.3, 0.2], [0.2, 0.3], [0.1, 0.7], [0.6, 0.1]], dtype=torch.float64).log()
    taught = objective()
    taught.prepare(batch)
    terms = taught.loss(ModelOutputs(candidate_logprobs=student), batch)
    assert float(terms.sums["distillation/agreement"]) == 0.5


def slow(p: list[float], q: list[float], divergence: str, beta: float = 0.5) -> float:
    """Compute the divergence over candidates and the rest, one at a time."""
    p, q = [*p, 1 - sum(p)], [*q, 1 - sum(q)]

    def kl(first: list[float], second: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(first, second, strict=True))

    if divergence == JENSEN_SHANNON:
        mixture = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
        return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)
    return kl(p, q) if divergence == FORWARD else kl(q, p)


def trl_jensen_shannon(teacher_log_probs: Tensor, student_log_probs: Tensor, beta: float) -> Tensor:
    """Return the divergence of each row as TRL writes it (GKDTrainer.generalized_jsd_loss in
    trl/experimental/gkd/gkd_trainer.py, reduction "none"), summed over the row."""
    if beta == 0:
        pair = (student_log_probs, teacher_log_probs)
        return torch.nn.functional.kl_div(*pair, reduction="none", log_target=True).sum(-1)
    if beta == 1:
        pair = (teacher_log_probs, student_log_probs)
        return torch.nn.functional.kl_div(*pair, reduction="none", log_target=True).sum(-1)
    weight = torch.tensor(beta, dtype=student_log_probs.dtype)
    parts = [student_log_probs + torch.log1p(-weight), teacher_log_probs + torch.log(weight)]
    mixture = torch.logsumexp(torch.stack(parts), dim=0)
    divergences = [
        torch.nn.functional.kl_div(mixture, target, reduction="none", log_target=True)
        for target in (teacher_log_probs, student_log_probs)
    ]
    return (weight * divergences[0] + (1 - weight) * divergences[1]).sum(-1)


@pytest.mark.parametrize(
    ("fields", "beta"),
    [
        ({"divergence": FORWARD}, 0.0),
        ({"divergence": REVERSE}, 1.0),
        ({"divergence": JENSEN_SHANNON}, 0.5),
        ({"divergence": JENSEN_SHANNON, "beta": 0.1}, 0.1),
        ({"divergence": JENSEN_SHANNON, "beta": 0.9}, 0.9),
    ],
)
def test_divergences_and_their_gradients_equal_those_of_trl(fields: dict[str, Any], beta: float) -> None:
    generator = torch.Generator().manual_seed(7)
    teacher = torch.randn((8, 6), generator=generator, dtype=torch.float64).mul(3).log_softmax(-1)
    logits = torch.randn((8, 6), generator=generator, dtype=torch.float64, requires_grad=True)
    student = logits.log_softmax(-1)
    entry = spec.TeacherDistribution(**fields)
    pair = divergence_between(teacher, student, entry), trl_jensen_shannon(teacher, student, beta)
    torch.testing.assert_close(*pair, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in pair]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


@pytest.mark.parametrize("divergence", [FORWARD, REVERSE, JENSEN_SHANNON])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_values_and_gradients_equal_a_reference_loop(
    divergence: spec.DistillationDivergence, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(4)
    teacher = torch.randn((6, 5), generator=generator, dtype=torch.float64).softmax(-1)[:, :3]
    logits = torch.randn((6, 5), generator=generator, dtype=torch.float64, requires_grad=True)
    mask = [0, 1, 1, 0, 1, 1]
    batch = batch_of(teacher.tolist(), mask)
    taught = objective(divergence=divergence, temperature=temperature, cross_entropy_coefficient=0.7)
    taught.prepare(batch)

    def loss(values: Tensor) -> Tensor:
        soft = (values / temperature).log_softmax(-1)[:, :3]
        return taught.loss(ModelOutputs(-torch.ones(6).double(), None, None, soft), batch).loss

    def slowly(values: Tensor) -> float:
        total = 0.0
        for token in range(6):
            if mask[token]:
                q = (values[token] / temperature).softmax(-1)[:3].tolist()
                total += temperature**2 * slow(teacher[token].tolist(), q, divergence) / 4
        return total + 0.7

    assert float(loss(logits).detach()) == pytest.approx(slowly(logits.detach()), abs=1e-9)
    (gradient,) = torch.autograd.grad(loss(logits), logits)
    for position in range(6):
        for column in range(5):
            up, down = logits.detach().clone(), logits.detach().clone()
            up[position, column] += 1e-5
            down[position, column] -= 1e-5
            numeric = (slowly(up) - slowly(down)) / 2e-5
            assert float(gradient[position, column]) == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize("divergence", [FORWARD, REVERSE])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_full_vocabulary_gives_the_exact_kl(
    divergence: spec.DistillationDivergence, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)
    teacher = (3 * torch.randn((4, 50), generator=generator, dtype=dtype)).log_softmax(-1)
    logits = torch.randn((4, 50), generator=generator, dtype=dtype, requires_grad=True)
    batch = pack([[1] * 4], ["0"])
    batch.token_columns |= {"loss_mask": torch.ones(4, dtype=torch.uint8), "candidate_logprobs": teacher}
    taught = objective(divergence=divergence)
    taught.prepare(batch)
    mine = taught.loss(ModelOutputs(candidate_logprobs=logits.log_softmax(-1)), batch).loss
    student = logits.log_softmax(-1)
    pair = (student, teacher) if divergence is FORWARD else (teacher, student)
    full = torch.nn.functional.kl_div(*pair, reduction="batchmean", log_target=True)
    near = {"atol": 1e-6 if dtype is torch.float64 else 1e-5, "rtol": 0.0}
    torch.testing.assert_close(mine, full, **near)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (mine, full)]
    torch.testing.assert_close(*gradients, **near)


def test_fewer_candidates_are_a_lower_bound() -> None:
    generator = torch.Generator().manual_seed(6)
    teacher, student = torch.randn((2, 1, 40), generator=generator, dtype=torch.float64).log_softmax(-1)
    order = teacher[0].argsort(descending=True)
    result = []
    for count in (1, 4, 16, 40):
        batch = batch_of(teacher[:, order[:count]].exp().tolist())
        taught = objective()
        taught.prepare(batch)
        result.append(
            float(taught.loss(ModelOutputs(candidate_logprobs=student[:, order[:count]]), batch).loss)
        )
    assert result == sorted(result)
    assert result[0] < result[-1]


def test_log1mexp_near_and_far() -> None:
    x = torch.tensor([-1e-12, -1e-3, -math.log(2), -1.0, -50.0], dtype=torch.float64)
    exact = [math.log(-math.expm1(value)) if value > -1 else math.log1p(-math.exp(value)) for value in x]
    torch.testing.assert_close(log1mexp(x), torch.tensor(exact, dtype=torch.float64), atol=0, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_confident_student_has_a_finite_gradient(dtype: torch.dtype) -> None:
    logits = torch.tensor([[60.0, 0.0, -60.0, 0.0]], dtype=dtype, requires_grad=True)
    result = with_rest(logits.log_softmax(-1)[:, :3])
    assert float(result[0, -1]) == pytest.approx(math.log(LEAST_REST), rel=1e-3)
    result.sum().backward()
    assert logits.grad is not None and bool(logits.grad.isfinite().all())
