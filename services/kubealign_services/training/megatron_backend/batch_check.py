"""Checks a batch against a model: its tokens, positions and outputs, and the shapes of the outputs."""

from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes
from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture


def check_batch(batch: Batch, outputs: frozenset[str], shape: ModelArchitecture, heads: HeadSizes) -> None:
    """Raise ValueError for tokens or positions that the model does not have, or for an output without a head.

    All ranks check the same batch, so none is left waiting for another.
    """
    lowest, highest = int(batch.tokens.min()), int(batch.tokens.max())
    if lowest < 0 or highest >= shape.vocabulary:
        raise ValueError(
            f"the batch holds token {lowest if lowest < 0 else highest}; "
            f"the model's vocabulary has {shape.vocabulary}"
        )
    longest = int(batch.lengths.max())
    if longest > shape.positions:
        raise ValueError(
            f"the batch holds a sequence of {longest} tokens; the model has {shape.positions} positions"
        )
    available = ({"values"} if heads.scores else set()) | (
        {"logprobs", "entropy", "candidate_logprobs"} if heads.vocabulary else set()
    )
    if not outputs <= available:
        raise ValueError(
            f"outputs {sorted(outputs - available)} were asked for; the model gives {sorted(available)}"
        )
    if "candidate_logprobs" in outputs and "candidates" not in batch.token_columns:
        raise ValueError("candidate_logprobs were asked for, and the batch has no column candidates")
    for name in ("temperature", "candidates_temperature"):
        if not batch.scalars.get(name, 1.0) > 0:
            raise ValueError(f"{name} is {batch.scalars[name]}; it must be above 0")


def output_widths(batch: Batch, head: Head, heads: HeadSizes) -> dict[str, tuple[int, ...]]:
    """Return each output's shape after [T]."""
    candidates = batch.token_columns.get("candidates")
    is_single = head is Head.VALUE or heads.scores == 1
    return {
        "logprobs": (),
        "entropy": (),
        "values": () if is_single else (heads.scores,),
        "candidate_logprobs": () if candidates is None else tuple(candidates.shape[1:]),
    }
