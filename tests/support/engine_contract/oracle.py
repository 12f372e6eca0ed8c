"""Checks samples against transformers in float64, token by token and independently of every engine."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from kubealign_services.generation.contract import FinishReason, GeneratedSample, GenerationRequest
from support.engine_contract.tiny_model import END_TOKEN, model

#: Bound of the difference of log-probabilities between float32 and float64.
TOLERANCE = 1e-4


@cache
def _exact_model(version: int) -> torch.nn.Module:
    exact: torch.nn.Module = model(version).double()
    return exact


def exact_logits(version: int, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Return the logits from which each of the tokens was drawn, [tokens, vocabulary], float64."""
    with torch.no_grad():
        logits: Tensor = _exact_model(version)(torch.tensor([[*prompt, *tokens]])).logits[0]
    return logits[len(prompt) - 1 : -1]


def sampled_distribution(logits: Tensor, request: GenerationRequest, position: int) -> Tensor:
    """Return the log-probabilities, [vocabulary], of the distribution of the token at `position`."""
    sampling = request.sampling
    logits = logits / sampling.temperature
    if position < sampling.min_tokens:
        logits = logits.index_fill(0, torch.tensor(sorted(_ends(request))), -torch.inf)
    order = logits.argsort(descending=True)
    if sampling.top_k:
        logits = logits.index_fill(0, order[sampling.top_k :], -torch.inf)
    mass, probabilities = 0.0, logits.softmax(0)
    for token in order if sampling.top_p < 1 else ():
        # The most probable tokens whose mass reaches top_p, at least one.
        if mass >= sampling.top_p:
            logits[token] = -torch.inf
        mass += float(probabilities[token])
    return logits.log_softmax(0)


def check_sample(sample: GeneratedSample, request: GenerationRequest, version: int, folder: Path) -> None:
    """Check the tokens, log-probabilities, end and text of a sample."""
    tokens, sampling = sample.tokens, request.sampling
    logits = exact_logits(version, request.prompt_tokens, tokens)
    full = (logits / (sampling.temperature or 1)).log_softmax(1)
    chosen = full.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    assert sample.engine_logprobs == pytest.approx(chosen, abs=TOLERANCE)
    if sampling.temperature == 0:
        # The tiny model's likeliest tokens are far apart, so rounding does not exchange them.
        assert tokens == logits.argmax(1).tolist()
        assert sample.behaviour_logprobs == [0.0] * len(tokens)
    else:
        expected = [
            float(sampled_distribution(row, request, position)[token])
            for position, (row, token) in enumerate(zip(logits, tokens, strict=True))
        ]
        assert sample.behaviour_logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert sample.versions == [version] * len(tokens)
    assert (sample.finish, len(tokens), sample.text) == _expected_end(tokens, request, folder)


@cache
def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def _ends(request: GenerationRequest) -> set[int]:
    return {END_TOKEN, *request.sampling.stop_token_ids}


def _expected_end(
    tokens: list[int], request: GenerationRequest, folder: Path
) -> tuple[FinishReason, int, str]:
    """Return why and where a response that begins with these tokens ends, and its text."""
    decode = partial(_tokenizer(folder).decode, clean_up_tokenization_spaces=False)
    for count, token in enumerate(tokens, start=1):
        if token in _ends(request) and count > request.sampling.min_tokens:
            return FinishReason.STOP, count, decode(tokens[: count - 1])
        text = decode(tokens[:count])
        starts = [text.index(stop) for stop in request.sampling.stop if stop in text]
        if starts:
            return FinishReason.STOP, count, text[: min(starts)]
    assert len(tokens) == request.sampling.max_tokens
    return FinishReason.LENGTH, len(tokens), decode(tokens)
