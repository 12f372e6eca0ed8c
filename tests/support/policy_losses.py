"""Reference implementations of the policy losses, as in the papers: one response at a time, in plain
loops."""

import math

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.batch.packed import Batch
from support.batches import slow_spans


def slow_action(ratio: Tensor, advantage: float, clip: spec.Clip) -> Tensor:
    """Return -min(r A, clip(r) A), with a dual clip at most dual |A| where A < 0."""
    size, at = abs(advantage), float(ratio.detach())
    if advantage >= 0:
        return -size * ratio if at < 1 + clip.high else _constant(-size * (1 + clip.high))
    if clip.dual is not None and at > clip.dual:
        return _constant(size * clip.dual)
    return size * ratio if at > 1 - clip.low else _constant(size * (1 - clip.low))


def _constant(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def slow_importance(batch: Batch, span: list[int], how: spec.ImportanceCorrection | None) -> list[float]:
    """Return the importance weight of each token of a response."""
    if how is None:
        return [1.0] * len(span)
    moves = [float(batch.token("old_logprobs")[t] - batch.token("engine_logprobs")[t]) for t in span]
    if how.level is spec.ImportanceLevel.SEQUENCE:
        moves = [sum(moves)] * len(span)
    if how.level is spec.ImportanceLevel.SEQUENCE_MEAN:
        moves = [sum(moves) / len(span)] * len(span)
    weights = [math.exp(move) for move in moves]
    if how.outside is spec.OutOfBoundsWeights.MASK:
        return [weight if how.lower_bound <= weight <= how.high else 0.0 for weight in weights]
    return [min(max(weight, how.lower_bound), how.high) for weight in weights]


def slow_policy_loss(batch: Batch, outputs: ModelOutputs, entry: spec.ClippedRatioSpec) -> Tensor:
    """Return the clipped loss with all options of the entry. If the ratio is per response, the response is
    one action, so its advantages must be equal."""
    assert outputs.logprobs is not None and outputs.entropy is not None
    spans = [
        span
        for span, cut in zip(slow_spans(batch), batch.sequence("truncated").tolist(), strict=True)
        if not (cut and entry.mask_truncated)
    ]
    tokens = sum(len(span) for span in spans)
    beta = entry.kl.fixed.coefficient if entry.kl.fixed and entry.kl.placement == "Loss" else 0.0
    total = torch.zeros((), dtype=torch.float64)
    for span in spans:
        share = {
            "SequenceMean": 1 / len(spans) / len(span),
            "TokenMean": 1 / tokens,
            "SequenceSum": 1 / len(spans),
            "FixedLength": 1 / len(spans) / batch.scalars["max_tokens"],
        }[entry.aggregation]
        moves = [outputs.logprobs[t] - batch.token("old_logprobs")[t] for t in span]
        weights = slow_importance(batch, span, entry.importance)
        advantages = [float(batch.token("advantages")[t]) for t in span]
        if entry.ratio is spec.RatioLevel.TOKEN:
            for move, weight, advantage in zip(moves, weights, advantages, strict=True):
                total = total + share * weight * slow_action(move.exp(), advantage, entry.clip)
        else:
            assert max(advantages) - min(advantages) < 1e-12
            log_ratio = torch.stack(moves).sum()
            one = entry.ratio is spec.RatioLevel.SEQUENCE
            ratio = log_ratio.exp() if one else (log_ratio / len(span)).exp()
            term = slow_action(ratio, advantages[0], entry.clip)
            count = 1 if one else len(span)
            if max(weights) - min(weights) < 1e-12:
                total = total + share * weights[0] * count * term
            else:
                # Each token contributes its share of the value, and its own gradient.
                for move, weight in zip(moves, weights, strict=True):
                    own = slow_action(
                        ratio.detach() * (move - move.detach()).exp(), advantages[0], entry.clip
                    )
                    part = own - (1 - count / len(span)) * own.detach()
                    total = total + share * weight * part
        for position in span:
            back = batch.token("reference_logprobs")[position] - outputs.logprobs[position]
            sampled = batch.token("engine_logprobs" if entry.importance else "old_logprobs")[position]
            ratio = (outputs.logprobs[position] - sampled).exp() if entry.corrects_kl else 1.0
            total = total + share * beta * ratio * (back.exp() - 1 - back)
            total = total - entry.entropy_coefficient * outputs.entropy[position] / tokens
    return total
