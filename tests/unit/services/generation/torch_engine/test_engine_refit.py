"""New weights: by name, all of them, while nothing runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.precision import Precision
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine import NonFiniteLogits, TorchRolloutEngine

REQUEST = GenerationRequest("r", (5, 6, 7), (1, 2), SamplingParameters(6, min_tokens=6))


def weights(zoo: Any, name: str = "llama-gqa", scale: float = 1.0) -> dict[str, torch.Tensor]:
    return {key: weight.detach() * scale for key, weight in zoo.reference(name).named_parameters()}


def test_samples_follow_the_weights(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("llama-gqa")
    places = [weight.data_ptr() for weight in engine._runner.model.module.parameters()]
    first = run_all(engine, REQUEST)
    canary = engine.sequence_logprobs([5, 6, 7, 8])
    engine.refit(weights(zoo, scale=1.3).items(), version=2)
    second = run_all(engine, REQUEST)
    assert engine.version == 2
    assert all(sample.versions == [2] * 6 for sample in second.values())
    assert [s.tokens for s in first.values()] != [s.tokens for s in second.values()]
    assert engine.sequence_logprobs([5, 6, 7, 8]) != pytest.approx(canary, abs=1e-3)
    engine.refit(weights(zoo).items(), version=3)
    assert {k: s.tokens for k, s in run_all(engine, REQUEST).items()} == {
        k: s.tokens for k, s in first.items()
    }
    assert [weight.data_ptr() for weight in engine._runner.model.module.parameters()] == places


def test_nothing_is_generated_before_the_first_refit(zoo: Any) -> None:
    engine = TorchRolloutEngine.create(zoo.folder("llama-gqa"), engine_spec.TorchEngineSpec())
    assert engine.version == -1
    assert engine.step() == []
    engine.add(REQUEST)
    with pytest.raises(RuntimeError, match="refit it first"):
        engine.step()
    with pytest.raises(RuntimeError, match="refit it first"):
        engine.sequence_logprobs([1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update({"model.layers.9.q": torch.zeros(1)}), r"the model has no 'model\.layers\.9\.q'"),
        (lambda w: w.pop("model.norm.weight"), r"1 of 21 did not come: 'model.norm.weight'"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(31)}), r"the shape \[31\], the model's \[32\]"),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(32, dtype=torch.int64)}),
            "holds torch.int64, the model's torch.float32",
        ),
    ],
    ids=["unknown", "missing", "shape", "dtype"],
)
def test_invalid_weights_are_refused_until_the_next_refit(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, zoo: Any, run_all: Callable[..., Any]
) -> None:
    engine = zoo.engine("llama-gqa")
    expected = {k: s.tokens for k, s in run_all(engine, REQUEST).items()}
    bad = weights(zoo)
    change(bad)
    with pytest.raises(ValueError, match=message):
        engine.refit(bad.items(), version=2)
    engine.add(REQUEST)
    with pytest.raises(RuntimeError, match="refit it first"):
        engine.step()
    engine.refit(weights(zoo).items(), version=3)
    assert {k: s.tokens for k, s in run_all(engine).items()} == expected


def test_tied_weights_are_loaded_once_by_either_name(zoo: Any) -> None:
    engine = zoo.engine("llama-tied")
    tied = weights(zoo, "llama-tied")
    assert "lm_head.weight" not in tied
    canary = engine.sequence_logprobs([5, 6, 7])
    tied["lm_head.weight"] = tied.pop("model.embed_tokens.weight")
    engine.refit(tied.items(), version=2)
    assert engine.sequence_logprobs([5, 6, 7]) == canary
    with pytest.raises(ValueError, match=r"'model\.embed_tokens\.weight' came twice"):
        engine.refit([*tied.items(), ("model.embed_tokens.weight", tied["lm_head.weight"])], version=3)


def test_no_refit_while_sequences_run(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("llama-gqa")
    engine.add(REQUEST)
    engine.step()
    with pytest.raises(RuntimeError, match="while 2 sequences run"):
        engine.refit(weights(zoo).items(), version=2)
    assert engine.version == 1
    assert len(run_all(engine)) == 2


def test_cached_prompt_does_not_survive_a_refit(zoo: Any, run_all: Callable[..., Any]) -> None:
    """One of two samples has ended; the other is generated with the new weights, from the prompt on."""
    engine = zoo.engine("llama-gqa", max_sequences=1)
    request = GenerationRequest("r", (5, 6, 7), (1, 2), SamplingParameters(1))
    engine.add(request)
    assert [sample.sample for sample in engine.step()] == [0]
    engine.refit(weights(zoo, scale=1.3).items(), version=2)
    late = run_all(engine)["r", 1]
    fresh = zoo.engine("llama-gqa")
    fresh.refit(weights(zoo, scale=1.3).items(), version=2)
    assert late.tokens == run_all(fresh, request)["r", 1].tokens
    assert late.engine_logprobs == pytest.approx(run_all(fresh, request)["r", 1].engine_logprobs, abs=1e-5)
    assert late.versions == [2]


def test_nan_weights_are_reported(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("llama-gqa")
    engine.refit(weights(zoo, scale=torch.nan).items(), version=2)
    engine.add(REQUEST)
    with pytest.raises(NonFiniteLogits, match="version 2"):
        engine.step()
    assert (engine.load().running, engine.load().waiting) == (0, 0)
    engine.refit(weights(zoo).items(), version=3)
    assert len(run_all(engine, REQUEST)) == 2


def test_bfloat16_engine_accepts_float32_weights(zoo: Any, run_all: Callable[..., Any]) -> None:
    """bfloat16 has eight significant bits: a few hundredths of a nat on logits of this size."""
    engine = TorchRolloutEngine.create(
        zoo.folder("llama-gqa"), engine_spec.TorchEngineSpec(precision=Precision.BFLOAT16)
    )
    engine.refit(weights(zoo).items(), version=1)
    exact = zoo.engine("llama-gqa").sequence_logprobs([5, 6, 7, 8, 9])
    assert engine.sequence_logprobs([5, 6, 7, 8, 9]) == pytest.approx(exact, abs=0.2)
    assert all(len(sample.tokens) == 6 for sample in run_all(engine, REQUEST).values())


def test_float16_engine_generates_and_agrees_with_float32(zoo: Any, run_all: Callable[..., Any]) -> None:
    """fp16 has eleven significant bits. On a CPU torch's own operations compute: the kernels have no fp16."""
    engine = TorchRolloutEngine.create(
        zoo.folder("llama-gqa"), engine_spec.TorchEngineSpec(precision=Precision.FLOAT16)
    )
    engine.refit(weights(zoo).items(), version=1)
    exact = zoo.engine("llama-gqa")
    tokens = [5, 6, 7, 8, 9]
    expected = exact.sequence_logprobs(tokens)
    assert engine.sequence_logprobs(tokens) == pytest.approx(expected, abs=0.03)
    for sample in run_all(engine, REQUEST).values():
        assert len(sample.tokens) == 6
        after = exact.sequence_logprobs([*REQUEST.prompt_tokens, *sample.tokens])[-6:]
        assert list(sample.engine_logprobs) == pytest.approx(after, abs=0.03)


@pytest.mark.parametrize("tokens", [[1], [1] * 97, [1, 276]])
def test_invalid_canary_is_refused(tokens: list[int], zoo: Any) -> None:
    with pytest.raises(ValueError, match="tokens"):
        zoo.engine("llama-gqa").sequence_logprobs(tokens)
