"""Responses of given lengths from transformers, both ways of generating. Computes nothing else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList


class EndAt(LogitsProcessor):
    """Row i of a batch gets its end token as its lengths[i]-th token, and not before."""

    def __init__(self, lengths: Sequence[int], prompt_tokens: int, end: int) -> None:
        """prompt_tokens: of the padded prompts."""
        self._last = torch.tensor(lengths) - 1
        self._prompt_tokens, self._end = prompt_tokens, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores [rows, vocabulary] -> the same, changed in place."""
        ending = (self._last == input_ids.shape[1] - self._prompt_tokens).to(scores.device)
        scores[:, self._end] = -torch.inf
        if bool(ending.any()):
            scores[ending] = -torch.inf
            scores[ending, self._end] = 0.0
        return scores


@contextmanager
def ending_at(model: Any, lengths: Sequence[int], prompt_tokens: int, end: int) -> Iterator[None]:
    """Within the block `model.generate` makes responses of these lengths."""
    processors = LogitsProcessorList([EndAt(lengths, prompt_tokens, end)])
    model.generate = partial(model.generate, logits_processor=processors)
    try:
        yield
    finally:
        del model.generate


@contextmanager
def ending_at_in_batch(lengths: Sequence[int]) -> Iterator[None]:
    """Within the block `model.generate_batch` (continuous batching) makes responses of these lengths: each
    request is told its own as the most, and none ends before."""
    from transformers.generation.continuous_batching import ContinuousBatchingManager

    original = ContinuousBatchingManager.add_request

    def add(manager: Any, input_ids: Any, request_id: str | None = None, **keywords: Any) -> Any:
        place = int(str(request_id).removeprefix("req_"))
        keywords |= {"max_new_tokens": lengths[place % len(lengths)], "eos_token_id": -1}
        return original(manager, input_ids=input_ids, request_id=request_id, **keywords)

    ContinuousBatchingManager.add_request = add
    try:
        yield
    finally:
        ContinuousBatchingManager.add_request = original
