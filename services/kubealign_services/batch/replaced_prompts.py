"""Batch whose responses follow other prompts, and the way back to the tokens of the original batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch, pack


class PromptMismatch(ValueError):
    """A sequence does not begin with the prompt that is to be replaced: a retry cannot succeed."""


@dataclass(frozen=True)
class ReplacedPrompts:
    """Sequences whose prompts are replaced.

    Args:
        batch: The responses after the new prompts, with the token column loss_mask, all sequence columns and
            all scalars.
        original_tokens: int64 [R], positions of the tokens after the prompts in the original batch.
        new_tokens: int64 [R], positions of the same tokens in `batch`.
        length: Number of tokens of the original batch, T.
    """

    batch: Batch
    original_tokens: Tensor
    new_tokens: Tensor
    length: int

    def restore(self, column: Tensor) -> Tensor:
        """Return a token column of `batch`, [U] or [U, K], as one of the original batch, [T] or [T, K]: 0 at
        the prompts' tokens.
        """
        restored = column.new_zeros((self.length, *column.shape[1:]))
        restored[self.original_tokens] = column[self.new_tokens]
        return restored


def replace_prompts(
    batch: Batch, prompts: Sequence[Sequence[int]], new_prompts: Sequence[Sequence[int]]
) -> ReplacedPrompts:
    """Replace the prompt of each sequence. All tokens after the prompt stay, response or not.

    Args:
        batch: With the token column loss_mask.
        prompts: Prompt of each sequence, with which the sequence begins.
        new_prompts: Prompt of each sequence in its place, one token at least.

    Raises:
        PromptMismatch: A sequence does not begin with its prompt, or the loss mask marks a token of it.
    """
    bounds = batch.cu_seqlens.tolist()
    sequences, masks, original_tokens, new_tokens, offset = [], [], [], [], 0
    for index, (prompt, new_prompt) in enumerate(zip(prompts, new_prompts, strict=True)):
        start, end = bounds[index], bounds[index + 1]
        first = start + len(prompt)
        mask = batch.token("loss_mask")[start:end]
        if batch.tokens[start:first].tolist() != list(prompt) or first > end:
            raise PromptMismatch(
                f"{batch.sample_ids[index]} does not begin with the {len(prompt)} tokens of its row's "
                "prompt, which the hinted prompt replaces for the teacher"
            )
        if bool(mask[: len(prompt)].any()):
            raise PromptMismatch(
                f"{batch.sample_ids[index]}: the loss mask marks a token of the row's prompt"
            )
        response = batch.tokens[first:end].tolist()
        sequences.append([*new_prompt, *response])
        masks.append(torch.cat([mask.new_zeros(len(new_prompt)), mask[len(prompt) :]]))
        original_tokens.append(torch.arange(first, end))
        new_tokens.append(torch.arange(len(response)) + offset + len(new_prompt))
        offset += len(sequences[-1])
    replaced = pack(sequences, batch.sample_ids)
    replaced.token_columns["loss_mask"] = torch.cat(masks)
    replaced.sequence_columns |= batch.sequence_columns
    replaced.scalars |= batch.scalars
    return ReplacedPrompts(replaced, torch.cat(original_tokens), torch.cat(new_tokens), len(batch.tokens))
