"""Low-rank adapters: merging by hand and by peft, and grouping by name."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from kubealign_services.training.adapters.lora import LowRankAdapter, group_by_layer

# W [2, 3], rank 1, alpha 2: s = 2.
WEIGHT = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
DOWN = torch.tensor([[1.0, 0.0, 0.5]])
UP = torch.tensor([[0.5], [-1.0]])


def test_lora_by_hand() -> None:
    # B A = [[0.5, 0, 0.25], [-1, 0, -0.5]]; twice that is [[1, 0, 0.5], [-2, 0, -1]].
    expected = torch.tensor([[2.0, 0.0, 2.5], [-2.0, 3.0, -1.0]])
    assert torch.equal(LowRankAdapter(DOWN, UP, None).merge_into(WEIGHT, 2.0, transposed=False), expected)
    assert torch.equal(LowRankAdapter(DOWN, UP, None).merge_into(WEIGHT.T, 2.0, transposed=True), expected.T)
    assert torch.equal(WEIGHT, torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))


def test_dora_by_hand() -> None:
    # V = [[2, 0, 2.5], [-2, 3, -1]]; |V| = sqrt(10.25), sqrt(14); rows times m / |V| with m = (2, 7).
    magnitude = torch.tensor([2.0, 7.0])
    first, second = 2 / 10.25**0.5, 7 / 14**0.5
    expected = torch.tensor([[2 * first, 0, 2.5 * first], [-2 * second, 3 * second, -second]])
    actual = LowRankAdapter(DOWN, UP, magnitude).merge_into(WEIGHT, 2.0, transposed=False)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual.norm(dim=1), magnitude)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_merging_matches_peft(dora: bool, transposed: bool) -> None:
    torch.manual_seed(2)
    layer: Any = Conv1D(6, 5) if transposed else nn.Linear(5, 6)
    weight = layer.weight.detach().double().clone()
    model = nn.ModuleDict({"layer": layer.double()})
    config = LoraConfig(r=2, lora_alpha=3, target_modules=["layer"], use_dora=dora, fan_in_fan_out=transposed)
    inject_adapter_in_model(config, model)
    adapted: Any = model["layer"]
    for parameter in (adapted.lora_A, adapted.lora_B, adapted.lora_magnitude_vector):
        for part in parameter.parameters():
            nn.init.normal_(part)
    magnitude = adapted.lora_magnitude_vector["default"].weight if dora else None
    ours = LowRankAdapter(adapted.lora_A["default"].weight, adapted.lora_B["default"].weight, magnitude)
    actual = ours.merge_into(weight, 1.5, transposed)
    x = torch.randn(4, 5, dtype=torch.float64)
    out = x @ (actual if transposed else actual.T) + adapted.base_layer.bias
    torch.testing.assert_close(out, adapted(x), atol=1e-12, rtol=0)
    adapted.merge()
    torch.testing.assert_close(actual, adapted.base_layer.weight.detach(), atol=1e-12, rtol=0)


def test_bf16_is_merged_in_fp32() -> None:
    # 256 + 1 is 256 in bf16: the sum is computed in fp32 before the caller rounds it.
    actual = LowRankAdapter(torch.ones(1, 1), torch.ones(1, 1), None).merge_into(
        torch.tensor([[256.0]], dtype=torch.bfloat16), 1.0, transposed=False
    )
    assert actual.dtype is torch.float32 and actual.item() == 257


def test_names_round_trip() -> None:
    adapter = LowRankAdapter(DOWN, UP, torch.ones(2))
    named = list(adapter.named_tensors("model.layers.0.q_proj"))
    assert [name for name, _ in named] == [
        "model.layers.0.q_proj.lora_A.weight",
        "model.layers.0.q_proj.lora_B.weight",
        "model.layers.0.q_proj.lora_magnitude_vector",
    ]
    actual = group_by_layer(reversed(named))
    assert list(actual) == ["model.layers.0.q_proj"]
    assert actual["model.layers.0.q_proj"] == adapter
    assert group_by_layer(named[:2])["model.layers.0.q_proj"].magnitude is None
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' is not an adapter tensor; names end in"):
        group_by_layer([("model.norm.weight", DOWN)])
    with pytest.raises(ValueError, match=r"'model\.layers\.0\.q_proj\.lora_B\.weight' is missing"):
        group_by_layer(named[:1])
