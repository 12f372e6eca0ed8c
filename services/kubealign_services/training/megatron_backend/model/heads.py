"""Output heads on the last stage: the columns of `torch_backend.model.packed_model`, from hidden states whose
tokens and whose vocabulary are divided among ranks.
"""

from dataclasses import dataclass

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor, nn

from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.model.stage_tokens import StageTokens
from kubealign_services.training.megatron_backend.model.vocab_parallel_logprobs import (
    VocabularyShare,
    vocab_parallel_candidate_logprobs,
    vocab_parallel_collision,
    vocab_parallel_token_logprobs,
)
from kubealign_services.training.megatron_backend.parallel.process_groups import ParallelGroups
from kubealign_services.training.torch_backend.logprobs.chunked_logits import Temperature


@dataclass(frozen=True)
class OutputHeads:
    """The heads of the last stage.

    Attributes:
        head: Kind of head.
        vocabulary: Number of tokens; 0 for a bare trunk.
        score: The value or score head, [N, hidden], the same on all tensor ranks; None without one.
        sequence_parallel: True when the tensor ranks divide the tokens.
    """

    head: Head
    vocabulary: int
    score: nn.Linear | None
    groups: ParallelGroups
    sequence_parallel: bool

    def compute_columns(
        self, hidden: Tensor, weight: Tensor | None, tokens: StageTokens, outputs: frozenset[str]
    ) -> dict[str, Tensor]:
        """Compute the requested columns of `ModelOutputs`, each [T] or [T, K] in at least fp32.

        The columns are the same on all tensor and context ranks; their gradient flows into this rank's own
        part. Collective.

        Args:
            hidden: The trunk's hidden states [t, 1, H] on this rank.
            weight: This rank's rows of the language-model head.
        """
        columns: dict[str, Tensor] = {}
        if outputs & {"logprobs", "entropy", "collision", "candidate_logprobs"}:
            assert weight is not None
            columns = self._vocabulary_columns(
                self._gather_hidden(hidden, parts=True), weight, tokens, outputs
            )
        if "values" in outputs:
            columns["values"] = self._values_column(self._gather_hidden(hidden, parts=False), tokens)
        group = self.groups.context
        if group.size() > 1:
            columns = {
                name: reduce_from_tensor_model_parallel_region(column, group=group)
                for name, column in columns.items()
            }
        return {name: columns[name] for name in sorted(outputs)}

    def _gather_hidden(self, hidden: Tensor, parts: bool) -> Tensor:
        """Gather the hidden states into [t, H].

        Args:
            parts: True when each tensor rank will give a part of the gradient, False when all give the same.
        """
        group = self.groups.tensor
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, parts, group=group)
        elif parts and group.size() > 1:
            hidden = copy_to_tensor_model_parallel_region(hidden, group=group)
        return hidden[:, 0]

    def _vocabulary_columns(
        self, hidden: Tensor, weight: Tensor, tokens: StageTokens, outputs: frozenset[str]
    ) -> dict[str, Tensor]:
        packed, group = tokens.packed, self.groups.tensor
        share = VocabularyShare.for_rank(
            self.vocabulary, len(weight), group.rank(), group if group.size() > 1 else None
        )
        chosen, rows = _local_rows(packed.target_indices, packed.target_indices - 1, tokens)
        has_source = tokens.local_rows[packed.target_indices - 1] >= 0
        columns: dict[str, Tensor] = {}
        if outputs & {"logprobs", "entropy"}:
            logprobs, entropy = vocab_parallel_token_logprobs(
                hidden[rows],
                weight,
                packed.tokens[0, chosen],
                _local_temperature(packed.temperature, has_source),
                "entropy" in outputs,
                share,
            )
            columns = {
                "logprobs": _scatter_column(logprobs, chosen, tokens),
                "entropy": _scatter_column(entropy, chosen, tokens),
            }
        if "collision" in outputs:
            temperature = _local_temperature(packed.temperature, has_source)
            collision = vocab_parallel_collision(hidden[rows], weight, temperature, share)
            columns["collision"] = _scatter_column(collision, chosen, tokens)
        if "candidate_logprobs" in outputs:
            if packed.candidates is None:
                raise ValueError("candidate_logprobs were asked for, and the batch has no column candidates")
            logprobs_of_candidates = vocab_parallel_candidate_logprobs(
                hidden[rows],
                weight,
                packed.candidates[has_source],
                _local_temperature(packed.candidates_temperature, has_source),
                share,
            )
            columns["candidate_logprobs"] = _scatter_column(logprobs_of_candidates, chosen, tokens)
        return columns

    def _values_column(self, hidden: Tensor, tokens: StageTokens) -> Tensor:
        """Compute the values or scores.

        Values are shifted by one: a token holds the value of the state before it.
        """
        assert self.score is not None
        packed = tokens.packed
        wide = torch.promote_types(hidden.dtype, torch.float32)
        weight = self.score.weight.to(wide)
        if self.head is Head.VALUE:
            indices, rows = _local_rows(packed.predicted_indices, packed.predicted_indices - 1, tokens)
            return _scatter_column(hidden[rows].to(wide) @ weight[0], indices, tokens)
        all_indices = torch.arange(packed.tokens.shape[1], device=hidden.device)
        indices, rows = _local_rows(all_indices, all_indices, tokens)
        scores = hidden[rows].to(wide) @ (weight[0] if len(weight) == 1 else weight.T)
        return _scatter_column(scores, indices, tokens)


def _local_rows(indices: Tensor, sources: Tensor, tokens: StageTokens) -> tuple[Tensor, Tensor]:
    """Return the indices whose source is among this rank's tokens, and the source's row."""
    rows = tokens.local_rows[sources]
    is_local = rows >= 0
    return indices[is_local], rows[is_local]


def _local_temperature(temperature: Temperature, is_local: Tensor) -> Temperature:
    """Return the temperature of the targets whose source is among this rank's tokens."""
    return temperature[is_local] if isinstance(temperature, Tensor) else temperature


def _scatter_column(values: Tensor, indices: Tensor, tokens: StageTokens) -> Tensor:
    """Scatter one value, or K values, for each index into [T] or [T, K], with 0 elsewhere."""
    length = tokens.packed.tokens.shape[1]
    zeros = torch.zeros((length, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return zeros.index_add(0, indices, values)
