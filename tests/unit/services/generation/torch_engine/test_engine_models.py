"""The engine's log-probabilities and samples against plain transformers, for each kind of model."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    FalconConfig,
    GenerationConfig,
    GptOssConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.data.errors import DataError
from kubealign_services.generation.contract import FinishReason, GenerationRequest, SamplingParameters
from kubealign_services.generation.external.factory import read_model_info
from kubealign_services.generation.model_folder import end_tokens
from kubealign_services.generation.torch_engine import TorchRolloutEngine, UnsupportedEngineModel
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from support.chat_templates import FAMILIES, ChatFamily

MODELS = ["llama-gqa", "llama-tied", "qwen2", "mistral-window", "qwen2-some-windows", "gpt-neox", "gpt2"]
GPT_OSS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "num_local_experts": 2,
    "intermediate_size": 32,
}
PROMPTS = [(5, 9, 200), tuple(range(30, 47)), (77,), (8, 8, 8, 8)]


def generation(**settings: Any) -> Any:
    """Return transformers' own settings of `generate`."""
    make: Callable[..., Any] = GenerationConfig
    return make(**settings)


def plain_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return logits [tokens, vocabulary] of an ordinary forward pass."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_transformers_generate(name: str, zoo: Any, run_all: Callable[..., Any]) -> None:
    """Four prompts of different lengths in one batch, 20 tokens each, well beyond the sliding window where
    there is one.
    """
    engine, reference = zoo.engine(name), zoo.reference(name)
    sampling = SamplingParameters(max_tokens=20, temperature=0)
    samples = run_all(engine, *(GenerationRequest(str(i), p, (0,), sampling) for i, p in enumerate(PROMPTS)))
    for i, prompt in enumerate(PROMPTS):
        settings = generation(do_sample=False, max_new_tokens=20, eos_token_id=270, pad_token_id=271)
        expected = reference.generate(torch.tensor([prompt]), generation_config=settings)[
            0, len(prompt) :
        ].tolist()
        assert samples[str(i), 0].tokens == expected


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_equal_a_plain_forward_pass(name: str, zoo: Any, run_all: Callable[..., Any]) -> None:
    engine, reference = zoo.engine(name), zoo.reference(name)
    sampling = SamplingParameters(max_tokens=16, temperature=0.7, min_tokens=16)
    samples = run_all(
        engine, *(GenerationRequest(str(i), p, (i, 50 + i), sampling) for i, p in enumerate(PROMPTS))
    )
    assert len(samples) == 8
    for (request, _), sample in samples.items():
        prompt = list(PROMPTS[int(request)])
        logits = plain_logits(reference, prompt + sample.tokens)[len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
        assert sample.engine_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        sequence = prompt + sample.tokens
        canary = torch.log_softmax(plain_logits(reference, sequence)[:-1], -1)
        expected = canary.gather(1, torch.tensor(sequence[1:])[:, None])[:, 0]
        assert engine.sequence_logprobs(sequence) == pytest.approx(expected.tolist(), abs=1e-4)


def test_behaviour_logprobs_against_an_independent_computation(zoo: Any, run_all: Callable[..., Any]) -> None:
    """Temperature, then top-k, then top-p, in plain Python over the reference's logits."""
    engine, reference = zoo.engine("llama-gqa"), zoo.reference("llama-gqa")
    prompt, temperature, k, p = [4, 5, 6], 1.3, 12, 0.8
    sampling = SamplingParameters(max_tokens=12, min_tokens=12, temperature=temperature, top_k=k, top_p=p)
    samples = run_all(engine, GenerationRequest("r", tuple(prompt), tuple(range(6)), sampling))
    for sample in samples.values():
        logits = plain_logits(reference, prompt + sample.tokens)[len(prompt) - 1 : -1].tolist()
        for row, token, logprob in zip(logits, sample.tokens, sample.behaviour_logprobs, strict=True):
            weights = {t: math.exp(value / temperature) for t, value in enumerate(row) if t != 270}
            likeliest = sorted(weights, key=lambda t: -weights[t])[:k]
            total, mass, nucleus = sum(weights[t] for t in likeliest), 0.0, []
            for t in likeliest:
                if mass < p * total:
                    nucleus.append(t)
                mass += weights[t]
            assert token in nucleus
            assert logprob == pytest.approx(
                math.log(weights[token] / sum(weights[t] for t in nucleus)), abs=1e-4
            )


def test_min_tokens_equals_transformers_min_new_tokens(zoo: Any, run_all: Callable[..., Any]) -> None:
    """The end token is the model's likeliest token from the start."""
    engine, reference = zoo.engine("llama-gqa"), zoo.reference("llama-gqa")
    free = run_all(engine, GenerationRequest("free", (5, 9, 200), (0,), SamplingParameters(8, temperature=0)))
    liked = free["free", 0].tokens[0]
    sampling = SamplingParameters(8, min_tokens=4, temperature=0, stop_token_ids=(liked,))
    ours = run_all(engine, GenerationRequest("r", (5, 9, 200), (0,), sampling))["r", 0]
    settings = generation(
        do_sample=False, max_new_tokens=8, min_new_tokens=4, eos_token_id=[270, liked], pad_token_id=271
    )
    expected = reference.generate(torch.tensor([[5, 9, 200]]), generation_config=settings)[0, 3:].tolist()
    assert ours.tokens == expected
    assert liked not in ours.tokens[:4]
    without = run_all(
        engine,
        GenerationRequest(
            "w", (5, 9, 200), (0,), SamplingParameters(8, temperature=0, stop_token_ids=(liked,))
        ),
    )
    assert (without["w", 0].tokens, without["w", 0].finish, without["w", 0].text) == (
        [liked],
        FinishReason.STOP,
        "",
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GptOssConfig(**GPT_OSS), "s_aux"),
        (BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=64), "max_position_embeddings"),
        (FalconConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=64), "ttention"),
        (T5Config(d_model=32, num_layers=1, vocab_size=64), "encoder-decoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_unsupported_models_are_refused(config: Any, message: str) -> None:
    with pytest.raises(UnsupportedEngineModel, match=message):
        CausalModel(config, torch.float32, torch.device("cpu"))


def test_inherited_end_token_that_is_text_is_refused(
    tmp_path: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    """LlamaConfig's own default end token is id 2, a letter in this tokenizer."""
    generation(eos_token_id=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"generation_config.json, eos_token_id: 2 .* 270 \('<eos>'\)"):
        end_tokens(tmp_path, LlamaConfig(), tokenizer)
    generation(eos_token_id=[271]).save_pretrained(tmp_path)
    assert end_tokens(tmp_path, LlamaConfig(), tokenizer) == {270, 271}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_response_ends_at_the_templates_end_of_turn(tmp_path: Path, family: ChatFamily) -> None:
    """The end tokens are the union of the tokenizer's, the template's and generation_config.json's."""
    tokenizer = family.tokenizer()
    extra = tokenizer.get_vocab()[(family.special or (family.end,))[0]]
    tokenizer.save_pretrained(tmp_path)
    LlamaConfig(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    ends = {tokenizer.eos_token_id, tokenizer.get_vocab()[family.end]}
    assert read_model_info(tmp_path).end_tokens == ends
    generation(eos_token_id=[extra, tokenizer.eos_token_id]).save_pretrained(tmp_path)
    assert read_model_info(tmp_path).end_tokens == ends | {extra}


def test_a_vocabulary_too_small_for_the_tokenizer_is_refused(
    tmp_path: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer.save_pretrained(tmp_path)
    LlamaConfig(vocab_size=100).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="ids up to 271, the model's vocabulary has 100"):
        TorchRolloutEngine.create(tmp_path, engine_spec.TorchEngineSpec())
