"""Supervised fine-tuning by hand."""

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.offline.sft import SFTAlgorithm
from kubealign_services.batch.packed import pack


def test_sft_is_the_mean_over_all_response_tokens() -> None:
    # Response tokens -1, -2 and -6 of two sequences: (1 + 2 + 6) / 3 = 3, not the mean of means (1.5 + 6) /
    # 2.
    batch = pack([[1, 2, 3], [1, 2]], ["0", "1"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    objective = SFTAlgorithm(spec.SFTSpec()).policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=torch.tensor([0, -1, -2, 0, -6.0])), batch)
    assert float(terms.loss) == pytest.approx(3)
    assert float(terms.sums["sft/loss"]) == pytest.approx(3)
