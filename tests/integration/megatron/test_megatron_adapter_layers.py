"""Adapters on megatron-core's layers over two tensor ranks: outputs and gradients match dense layers in
float64, with and without sequence parallelism, and the ranks' gathered weights are complete.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.model.architecture import read_architecture
from kubealign_services.training.megatron_backend.model.lora_layers import adapted_layers, init_lora_a
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes, build_conversions
from support import adapter_layers
from support.adapter_layers import COLUMNS, LORA, ROWS, TOKENS, whole_inputs, whole_up
from support.forked_ranks import RankFactory
from support.megatron_models import config_of, save_model

pytestmark = pytest.mark.timeout(240)

#: Sequence parallelism, the model's folder, and each rank's results.
Found = tuple[bool, Path, list[dict[str, Tensor]]]

SCALE = LORA.alpha / LORA.rank
CONFIG = config_of("llama", num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, head_dim=2)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Return the model's folder and the folder of both ranks' results."""
    folder, work = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("found")
    save_model(folder, CONFIG)
    modules = [adapter_layers.__name__, "transformers.models.llama.modeling_llama"]
    with RankFactory(modules) as factory:
        seats = [(rank, folder, work / "store", work) for rank in range(2)]
        target = f"{adapter_layers.__name__}:{adapter_layers.run_rank.__name__}"
        assert factory.run(target, seats, timeout=150) == [0, 0]
        yield folder, work


@pytest.fixture(params=[False, True], ids=["whole sequences", "sequence parallel"])
def found(request: pytest.FixtureRequest, places: tuple[Path, Path]) -> Found:
    folder, work = places
    shared: bool = request.param
    return shared, folder, [load_file(work / f"{shared}-{rank}.safetensors") for rank in range(2)]


@pytest.mark.parametrize("end", COLUMNS + ROWS)
def test_a_layer_and_its_gradients_match_a_dense_layer(end: str, found: Found) -> None:
    shared, folder, ranks = found
    name = f"decoder.layers.0.{end}"
    conversions = build_conversions(
        read_architecture(CONFIG),
        MegatronBackendSpec(tensor_parallel=2),
        2,
        HeadSizes(),
        adapted_layers(CONFIG, LORA),
    )
    parts = [conversion.slices_of(f"{name}.weight") for conversion in conversions]
    stored = load_file(folder / "model.safetensors")
    downs = init_lora_a(CONFIG, LORA, 1, Head.LANGUAGE_MODEL, torch.float32)
    is_row = end in ROWS
    outputs, inputs = conversions[0].shapes[f"{name}.weight"]
    given, slope = whole_inputs(inputs * (2 if is_row else 1), outputs * (1 if is_row else 2))
    given.requires_grad_()

    dense: dict[str, dict[str, Tensor]] = {}
    for tensor in {part.name for part in parts[0]}:
        layer = tensor.removesuffix(".weight")
        weight, down = stored[tensor].double(), downs[layer].double().requires_grad_()
        up = whole_up(f"{layer}.lora_B.weight", (len(weight), LORA.rank)).requires_grad_()
        base = given @ weight.T
        dense[tensor] = {"A": down, "B": up, "base": base, "output": base + SCALE * (given @ down.T) @ up.T}
    loss = torch.zeros((), dtype=torch.float64)
    for rank in range(2):
        # A rank of a row-parallel layer has all outputs: the loss is counted once.
        for part in parts[rank] if not is_row else parts[0][: 1 - rank]:
            first = part.local_start[0] + rank * outputs
            mine = slope if is_row else slope[..., first : first + part.size[0]]
            loss = loss + (dense[part.name]["output"][..., part.start[0] :][..., : part.size[0]] * mine).sum()
    loss.backward()

    for rank, got in enumerate(ranks):
        tokens = slice(rank * TOKENS // 2, (rank + 1) * TOKENS // 2) if shared else slice(None)
        for part in parts[rank]:
            rows = slice(part.local_start[0], part.local_start[0] + part.size[0])
            dense_rows = slice(part.start[0], part.start[0] + part.size[0])
            for kind in ("output", "base"):
                expected = dense[part.name][kind][..., dense_rows]
                same(got[f"{name}.{kind}"][..., rows], expected[tokens] if is_row else expected)
        assert given.grad is not None
        columns = slice(rank * inputs, (rank + 1) * inputs) if is_row else slice(None)
        same(got[f"{name}.inputs"], given.grad[..., columns] if is_row else given.grad[tokens])
        for tensor, of in dense.items():
            stem = f"{name}.adapters.{tensor.split('.')[-2]}"
            assert of["A"].grad is not None and of["B"].grad is not None
            same(got[f"{stem}.lora_A"], of["A"].grad[:, columns])
            each = len(of["B"]) // 2
            own = slice(None) if is_row else slice(rank * each, (rank + 1) * each)
            same(got[f"{stem}.lora_B"], of["B"].grad[own])


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shared", [False, True])
def test_gathered_weights_are_complete(shared: bool, places: tuple[Path, Path]) -> None:
    folder, work = places
    gathered = load_file(work / f"{shared}-whole.safetensors")
    downs = init_lora_a(CONFIG, LORA, 1, Head.LANGUAGE_MODEL, torch.float32)
    for name, tensor in load_file(folder / "model.safetensors").items():
        expected, layer = tensor.double(), name.removesuffix(".weight")
        if layer in downs:
            same(gathered[f"{layer}.lora_A.weight"], downs[layer].double())
            up = whole_up(f"{layer}.lora_B.weight", (len(tensor), LORA.rank))
            same(gathered[f"{layer}.lora_B.weight"], up)
            expected = expected + SCALE * up @ downs[layer].double()
        same(gathered[name], expected)
    assert len(gathered) == 3 + 9 + 2 * 7
