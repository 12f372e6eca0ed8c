"""Weights that are views of shared memory: the model never writes to it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from kubealign_services.generation.torch_engine.model.adapter_merge import MergedAdapter
from kubealign_services.generation.torch_engine.model.weight_loader import WeightLoader

pytestmark = pytest.mark.timeout(60)


class Lasting:
    """Named tensors as a weight transfer yields them."""

    def __init__(self, tensors: dict[str, Tensor], lasts: bool = True) -> None:
        self.tensors = tensors
        self.lasts = lasts
        self._before = {name: tensor.clone() for name, tensor in tensors.items()}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.tensors.items())

    @property
    def untouched(self) -> bool:
        return all(torch.equal(tensor, self._before[name]) for name, tensor in self.tensors.items())


class Tied(nn.Module):
    """A model with head tied to embed; norm is a vector."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4, dtype=dtype)
        self.middle = nn.Linear(4, 4, dtype=dtype)
        self.head = nn.Linear(4, 7, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.zeros(4, dtype=dtype))
        self.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.middle(self.embed(tokens)) + self.shift)
        return logits


NAMES = ("embed.weight", "middle.weight", "middle.bias", "shift")
TOKENS = torch.arange(7)


def weights(seed: int, dtype: torch.dtype = torch.float32, lasts: bool = True) -> Lasting:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 4), (4, 4), (4,), (4,)]
    tensors = {
        name: torch.randn(shape, generator=generator).to(dtype)
        for name, shape in zip(NAMES, shapes, strict=True)
    }
    return Lasting(tensors, lasts)


def logits(tensors: dict[str, Tensor]) -> Tensor:
    """Compute the expected logits directly."""
    embed, middle, bias, shift = (tensors[name] for name in NAMES)
    return (embed @ middle.T + bias + shift) @ embed.T


def addresses(module: nn.Module) -> dict[str, int]:
    return {name: weight.data_ptr() for name, weight in module.state_dict().items()}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_persistent_weights_are_adopted(mode: type[torch.no_grad]) -> None:
    model, given = Tied(), weights(1)
    taking = WeightLoader(model)
    with mode():
        taking.load(given)
        assert torch.allclose(model(TOKENS), logits(given.tensors))
    assert {addresses(model)[name] for name in NAMES} == {t.data_ptr() for t in given.tensors.values()}
    assert model.head.weight is model.embed.weight
    second = weights(2)
    with mode():
        taking.load(second)
        assert torch.allclose(model(TOKENS), logits(second.tensors))
    assert given.untouched and second.untouched


@pytest.mark.parametrize("then", ["does not last", "another precision"])
def test_later_copies_go_to_the_models_own_memory(then: str) -> None:
    model, given = Tied(), weights(1)
    taking = WeightLoader(model)
    taking.load(given)
    second = weights(2, lasts=False) if then == "does not last" else weights(2, torch.float64)
    taking.load(second)
    assert given.untouched
    assert torch.allclose(model(TOKENS), logits({n: t.float() for n, t in second.tensors.items()}))
    own = addresses(model)
    assert not set(own.values()) & {
        t.data_ptr() for source in (given, second) for t in source.tensors.values()
    }
    # Later loads copy in place.
    taking.load(weights(3, lasts=False))
    assert addresses(model) == own


def test_unusable_weights_are_copied() -> None:
    model = Tied()
    taking = WeightLoader(model)
    own = addresses(model)
    turned = weights(1)
    turned.tensors["middle.weight"] = turned.tensors["middle.weight"].T
    taking.load(turned)
    assert addresses(model)["middle.weight"] == own["middle.weight"]
    assert addresses(model)["embed.weight"] == turned.tensors["embed.weight"].data_ptr()
    assert torch.allclose(model(TOKENS), logits(turned.tensors))


def test_plain_tensors_are_copied() -> None:
    model, given = Tied(), weights(1)
    own = addresses(model)
    WeightLoader(model).load(given.tensors.items())
    assert addresses(model) == own
    assert torch.allclose(model(TOKENS), logits(given.tensors))


def test_refused_version_is_replaced_by_the_next() -> None:
    model, given = Tied(), weights(1)
    taking = WeightLoader(model)
    with pytest.raises(ValueError, match="3 of 4 did not come"):
        taking.load(Lasting({"embed.weight": given.tensors["embed.weight"]}))
    second = weights(2, lasts=False)
    taking.load(second)
    assert given.untouched
    assert torch.allclose(model(TOKENS), logits(second.tensors))


def adapter(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "middle.lora_A.weight": torch.randn(2, 4, generator=generator),
        "middle.lora_B.weight": torch.randn(4, 2, generator=generator),
    }


def test_adapter_is_merged_outside_the_base() -> None:
    model, given = Tied(), weights(1)
    taking, adapted = WeightLoader(model), MergedAdapter(model)
    taking.load(given)
    for seed in (1, 2, 3):
        parts = adapter(seed)
        adapted.merge(parts.items(), scale=0.5)
        change = parts["middle.lora_B.weight"] @ parts["middle.lora_A.weight"]
        merged = given.tensors["middle.weight"] + 0.5 * change
        assert torch.allclose(model(TOKENS), logits({**given.tensors, "middle.weight": merged}), atol=1e-5)
        assert given.untouched
    # A new base replaces the first one and its adapter completely.
    second = weights(2)
    adapted.forget()
    taking.load(second)
    assert torch.allclose(model(TOKENS), logits(second.tensors))
    adapted.merge(adapter(1).items(), scale=0.0)
    assert torch.allclose(model(TOKENS), logits(second.tensors))
    assert given.untouched and second.untouched


def test_invalid_adapter_leaves_the_weights() -> None:
    model, given = Tied(), weights(1)
    WeightLoader(model).load(given)
    wrong = {
        **adapter(1),
        "nowhere.lora_A.weight": torch.ones(2, 4),
        "nowhere.lora_B.weight": torch.ones(4, 2),
    }
    with pytest.raises(ValueError, match="no linear layer 'nowhere'"):
        MergedAdapter(model).merge(wrong.items(), scale=1.0)
    assert torch.allclose(model(TOKENS), logits(given.tensors))
