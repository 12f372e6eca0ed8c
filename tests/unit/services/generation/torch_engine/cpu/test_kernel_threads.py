"""Thread count of passes on shared cores."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections import engines as spec
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.cpu.kernel_threads import (
    SMALL_BATCH_TOKENS,
    limit_threads,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine


@pytest.fixture(autouse=True)
def two_threads(one_thread: None) -> None:
    """Use two threads; the other fixture restores the count."""
    torch.set_num_threads(2)


def test_few_tokens_use_one_thread() -> None:
    seen = []
    for tokens in (1, SMALL_BATCH_TOKENS, SMALL_BATCH_TOKENS + 1):
        with limit_threads(tokens):
            seen.append(torch.get_num_threads())
    assert seen == [1, 1, 2] and torch.get_num_threads() == 2
    with pytest.raises(ArithmeticError), limit_threads(1):
        raise ArithmeticError
    assert torch.get_num_threads() == 2


def test_only_engines_on_shared_cores_limit_threads(zoo: Any) -> None:
    """A prompt of many tokens uses all threads; the responses are the same."""
    responses = []
    for shares_cores, expected in ((False, {2}), (True, {1, 2})):
        engine = TorchRolloutEngine.create(zoo.folder("llama-gqa"), spec.TorchEngineSpec(), shares_cores)
        engine.refit(zoo.reference("llama-gqa").named_parameters(), 0)
        model, seen = engine._runner.model, set[int]()  # type: ignore[attr-defined]
        model.forward = watched(model.forward, seen)
        prompt = tuple(5 + token % 7 for token in range(SMALL_BATCH_TOKENS + 1))
        engine.add(GenerationRequest("one", prompt, (1,), SamplingParameters(max_tokens=6, min_tokens=6)))
        finished: list[GeneratedSample] = []
        while not finished:
            finished = engine.step()
        assert seen == expected
        responses.append(finished[0].tokens)
    assert responses[0] == responses[1]


def watched(forward: Callable[..., Tensor], seen: set[int]) -> Callable[..., Tensor]:
    def counted(*arguments: Any, **named: Any) -> Tensor:
        seen.add(torch.get_num_threads())
        return forward(*arguments, **named)

    return counted
