"""The heads on the last stage: what `torch_backend.packed_model` gives, from hidden states whose tokens and
whose vocabulary are shared among ranks."""

from dataclasses import dataclass

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor, nn

from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.layout_groups import Groups
from kubealign_services.training.megatron_backend.stage_tokens import StageTokens
from kubealign_services.training.megatron_backend.vocabulary import (
    VocabularyShare,
    candidate_logprobs,
    token_logprobs,
)


@dataclass(frozen=True)
class Heads:
    """head: what stands on the trunk. vocabulary: the tokens that there are; 0 for a bare trunk. score: the
    values' head, [N, hidden], the same on all tensor ranks; None: there is none. sequence_parallel: whether
    the tensor ranks share the tokens."""

    head: Head
    vocabulary: int
    score: nn.Linear | None
    groups: Groups
    sequence_parallel: bool

    def columns(
        self, hidden: Tensor, weight: Tensor | None, tokens: StageTokens, outputs: frozenset[str]
    ) -> dict[str, Tensor]:
        """hidden: the trunk's [t, 1, H] on this rank. weight: its rows of the vocabulary's head. The columns
        of `ModelOutputs` that are asked for, each [T] or [T, K] in at least fp32, the same on all tensor and
        context ranks; their gradient flows into this rank's own part. Collective."""
        columns: dict[str, Tensor] = {}
        if outputs & {"logprobs", "entropy", "candidate_logprobs"}:
            assert weight is not None
            columns = self._of_vocabulary(self._whole(hidden, parts=True), weight, tokens, outputs)
        if "values" in outputs:
            columns["values"] = self._values(self._whole(hidden, parts=False), tokens)
        group = self.groups.context
        if group.size() > 1:
            columns = {
                name: reduce_from_tensor_model_parallel_region(column, group=group)
                for name, column in columns.items()
            }
        return {name: columns[name] for name in sorted(outputs)}

    def _whole(self, hidden: Tensor, parts: bool) -> Tensor:
        """[t, H]. parts: whether each tensor rank will give a part of the gradient, or all the same."""
        group = self.groups.tensor
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, parts, group=group)
        elif parts and group.size() > 1:
            hidden = copy_to_tensor_model_parallel_region(hidden, group=group)
        return hidden[:, 0]

    def _of_vocabulary(
        self, hidden: Tensor, weight: Tensor, tokens: StageTokens, outputs: frozenset[str]
    ) -> dict[str, Tensor]:
        packed, group = tokens.packed, self.groups.tensor
        share = VocabularyShare.of(
            self.vocabulary, len(weight), group.rank(), group if group.size() > 1 else None
        )
        chosen, rows = _here(packed.chosen, packed.chosen - 1, tokens)
        columns: dict[str, Tensor] = {}
        if outputs & {"logprobs", "entropy"}:
            logprobs, entropy = token_logprobs(
                hidden[rows],
                weight,
                packed.tokens[0, chosen],
                packed.temperature,
                "entropy" in outputs,
                share,
            )
            columns = {
                "logprobs": _spread(logprobs, chosen, tokens),
                "entropy": _spread(entropy, chosen, tokens),
            }
        if "candidate_logprobs" in outputs:
            if packed.candidates is None:
                raise ValueError("candidate_logprobs were asked for, and the batch has no column candidates")
            of_chosen = tokens.local[packed.chosen - 1] >= 0
            found = candidate_logprobs(
                hidden[rows], weight, packed.candidates[of_chosen], packed.candidates_temperature, share
            )
            columns["candidate_logprobs"] = _spread(found, chosen, tokens)
        return columns

    def _values(self, hidden: Tensor, tokens: StageTokens) -> Tensor:
        """Moved one on for a value: at a token, that of the state before it."""
        assert self.score is not None
        packed = tokens.packed
        wide = torch.promote_types(hidden.dtype, torch.float32)
        weight = self.score.weight.to(wide)
        if self.head is Head.VALUE:
            places, rows = _here(packed.predicted, packed.predicted - 1, tokens)
            return _spread(hidden[rows].to(wide) @ weight[0], places, tokens)
        every = torch.arange(packed.tokens.shape[1], device=hidden.device)
        places, rows = _here(every, every, tokens)
        scores = hidden[rows].to(wide) @ (weight[0] if len(weight) == 1 else weight.T)
        return _spread(scores, places, tokens)


def _here(places: Tensor, sources: Tensor, tokens: StageTokens) -> tuple[Tensor, Tensor]:
    """Those places whose source is among this rank's tokens, and the source's row."""
    rows = tokens.local[sources]
    here = rows >= 0
    return places[here], rows[here]


def _spread(values: Tensor, places: Tensor, tokens: StageTokens) -> Tensor:
    """One, or K, for each place -> [T] or [T, K], with 0 elsewhere."""
    length = tokens.packed.tokens.shape[1]
    zeros = torch.zeros((length, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return zeros.index_add(0, places, values)
