"""Ranks that share the tokens of each pack compute what one rank does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
)

from support.context_ranks import CASES, ContextSetup, run_rank
from support.forked_ranks import RankFactory
from support.free_address import free_address
from support.training_contract import VOCABULARY

pytestmark = pytest.mark.timeout(300)

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": None,
}  # fmt: skip
MODELS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "one-kv-head": Qwen2Config(**SIZES, num_key_value_heads=1),
    "gemma2": Gemma2Config(
        **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=4, attn_logit_softcapping=1.5,
        final_logit_softcapping=3.0,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.1,
        initializer_range=0.2,
    ),
}  # fmt: skip
#: Ranks, and how many of them share a pack.
LAYOUTS = {"context 2": (2, 2), "context 2 x data 2": (4, 2), "context 4": (4, 4)}
ALL = pytest.mark.parametrize("layout", LAYOUTS)


class Runs(dict[str, Path]):
    """The folder with the results of each layout, and of "one" rank, each run when it is first asked for."""

    def __init__(self, factory: RankFactory, root: Path) -> None:
        super().__init__()
        self._factory, self._root = factory, root

    def __missing__(self, layout: str) -> Path:
        ranks, context = {"one": (1, 1), **LAYOUTS}[layout]
        work = self._root / layout
        work.mkdir()
        address = free_address() if ranks > 1 else None
        models = self._root / "models"
        setups = [(ContextSetup(rank, ranks, context, address, models, work),) for rank in range(ranks)]
        codes = self._factory.run(f"{run_rank.__module__}:{run_rank.__name__}", setups, timeout=200)
        assert codes == [0] * ranks, f"{layout}: exit codes {codes}"
        self[layout] = work
        return work


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    root = tmp_path_factory.mktemp("context")
    for name, config in MODELS.items():
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / "models" / name)
    reward = LlamaConfig(**SIZES, num_key_value_heads=2, num_labels=1)
    LlamaForSequenceClassification(reward).save_pretrained(root / "models" / "reward")
    modules = [f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2", "gemma2", "gpt2")]
    with RankFactory([run_rank.__module__, *modules]) as factory:
        yield Runs(factory, root)


def tensors(folder: Path, case: str, kind: str) -> dict[str, Tensor]:
    result = {name: each for name, each in load_file(folder / case).items() if name.startswith(kind)}
    assert result
    return result


def all_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, atol=tolerance, rtol=tolerance, msg=name)


@ALL
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", ["plain", "short", "shared"])
def test_outputs(runs: Runs, layout: str, case: str, batch: str) -> None:
    """The outputs are float32."""
    expected = tensors(runs["one"], case, batch)
    all_close(tensors(runs[layout], case, batch), expected, 1e-6)
    assert all(bool((each != 0).any()) for each in expected.values())


@ALL
@pytest.mark.parametrize("case", CASES)
def test_gradients(runs: Runs, layout: str, case: str) -> None:
    expected = tensors(runs["one"], case, "gradient")
    # The norms of Gemma 2 compute in float32, also in a model of float64.
    tolerance = 1e-6 if CASES[case].model == "gemma2" else 1e-10
    all_close(tensors(runs[layout], case, "gradient"), expected, tolerance)
    assert all(float(each.abs().max()) > 1e-6 for each in expected.values())


@ALL
@pytest.mark.parametrize("case", CASES)
def test_metrics_and_weights_of_three_steps(runs: Runs, layout: str, case: str) -> None:
    actual, expected = (json.loads((runs[name] / f"{case}.json").read_text()) for name in (layout, "one"))
    for mine, theirs in zip(
        [actual["evaluated"], actual["passes"], *actual["steps"]],
        [expected["evaluated"], expected["passes"], *expected["steps"]],
        strict=True,
    ):
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    expected_weights = tensors(runs["one"], case, "weight")
    all_close(tensors(runs[layout], case, "weight"), expected_weights, 1e-6)


@ALL
def test_saved_activations_are_divided(runs: Runs, layout: str) -> None:
    ranks, context = LAYOUTS[layout]
    unshared = int((runs["one"] / "bytes-0").read_text())
    shares = [int((runs[layout] / f"bytes-{rank}").read_text()) for rank in range(ranks)]
    print(f"{layout}: {shares} of {unshared} bytes")
    assert max(shares) <= 1.15 * unshared / context
    assert sum(shares[:context]) >= 0.9 * unshared


@ALL
def test_ranks_may_draw_different_dropout(runs: Runs, layout: str) -> None:
    actual, expected = (json.loads((runs[name] / "dropout.json").read_text()) for name in (layout, "one"))
    assert actual["loss"] != expected["loss"]
    assert actual["loss"] == pytest.approx(expected["loss"], rel=0.2)
    assert actual["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.5)


@ALL
def test_a_model_that_is_wrong_on_one_rank_is_refused_by_all(runs: Runs, layout: str) -> None:
    ranks, context = LAYOUTS[layout]
    for rank in range(ranks):
        message = (runs[layout] / f"refusal-{rank}").read_text()
        assert message.startswith(f"backend.torch.contextParallel: {context}; model type llama gives")
        assert message.endswith(": set 1")
