"""Cross-entropy on chosen turns, by hand and against a slow loop."""

import math

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.offline.sft import SFTAlgorithm
from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import PreparedRow

#: Two imitated turns with unimitated tokens between them; and one turn.
ROWS = [
    PreparedRow(0, [5, 6], "p", response_tokens=[7, 1, 4, 4, 8, 1], response_mask=[1, 1, 0, 0, 1, 1]),
    PreparedRow(1, [5], "q", response_tokens=[9, 1]),
]


def loss_of(logprobs: torch.Tensor) -> torch.Tensor:
    objective = SFTAlgorithm(spec.SFTSpec()).policy_objective()
    batch = collate(ROWS, ["a", "b"], "demonstrations")
    objective.prepare(batch)
    return objective.loss(ModelOutputs(logprobs=logprobs), batch).loss


def test_values_by_hand() -> None:
    """Six tokens are imitated: those of probability 1/2, 1/4, 1/2, 1, 1/8 and 1/2. The mean of -log p is
    (1 + 2 + 1 + 0 + 3 + 1) log 2 / 6 = 4/3 log 2; the other tokens, of probability 1/1024, do not count."""
    read = 2.0**-10
    chances = [read, read, 1 / 2, 1 / 4, read, read, 1 / 2, 1.0, read, 1 / 8, 1 / 2]
    loss = loss_of(torch.tensor(chances, dtype=torch.float64).log())
    assert abs(float(loss) - 4 / 3 * math.log(2)) < 1e-6


def test_against_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    length = sum(len(row.prompt_tokens) + len(row.response_tokens or []) for row in ROWS)
    logprobs = -torch.rand(length, generator=generator, dtype=torch.float64)
    mine, slow = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    imitated = []
    position = 0
    for row in ROWS:
        assert row.response_tokens is not None
        position += len(row.prompt_tokens)
        for index in range(len(row.response_tokens)):
            if row.response_mask is None or row.response_mask[index] == 1:
                imitated.append(slow[position])
            position += 1
    expected = -sum(imitated, torch.zeros((), dtype=torch.float64)) / len(imitated)
    loss = loss_of(mine)
    loss.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(loss, expected, rtol=0, atol=1e-6)
    assert mine.grad is not None and slow.grad is not None
    assert torch.allclose(mine.grad, slow.grad, rtol=0, atol=1e-6)
    assert mine.grad.nonzero().flatten().tolist() == [2, 3, 6, 7, 9, 10]
