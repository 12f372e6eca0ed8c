"""Forces response lengths in transformers, for padded generation and for continuous batching."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList


class EndAt(LogitsProcessor):
    """Forces the end token as the lengths[i]-th token of row i, and not before."""

    def __init__(self, lengths: Sequence[int], prompt_tokens: int, end: int) -> None:
        """prompt_tokens: length of the padded prompts."""
        self._last = torch.tensor(lengths) - 1
        self._prompt_tokens, self._end = prompt_tokens, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Change scores [rows, vocabulary] in place and return them."""
        ending = (self._last == input_ids.shape[1] - self._prompt_tokens).to(scores.device)
        scores[:, self._end] = -torch.inf
        if bool(ending.any()):
            scores[ending] = -torch.inf
            scores[ending, self._end] = 0.0
        return scores


@contextmanager
def ending_at(model: Any, lengths: Sequence[int], prompt_tokens: int, end: int) -> Iterator[None]:
    """Make `model.generate` return responses of these lengths within the block."""
    processors = LogitsProcessorList([EndAt(lengths, prompt_tokens, end)])
    model.generate = partial(model.generate, logits_processor=processors)
    try:
        yield
    finally:
        del model.generate


@contextmanager
def ending_at_in_batch(lengths: Sequence[int]) -> Iterator[None]:
    """Make `model.generate_batch` (continuous batching) return responses of these lengths within the block:
    each request has its length as the maximum, and no end token."""
    from transformers.generation.continuous_batching import ContinuousBatchingManager

    original = ContinuousBatchingManager.add_request

    def add(manager: Any, input_ids: Any, request_id: str | None = None, **keywords: Any) -> Any:
        index = int(str(request_id).removeprefix("req_"))
        keywords |= {"max_new_tokens": lengths[index % len(lengths)], "eos_token_id": -1}
        return original(manager, input_ids=input_ids, request_id=request_id, **keywords)

    ContinuousBatchingManager.add_request = add
    try:
        yield
    finally:
        ContinuousBatchingManager.add_request = original
