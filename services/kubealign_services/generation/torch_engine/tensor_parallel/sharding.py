"""Division of each weight among N processes that share a model. Pure.

Megatron-LM's split (Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using
model parallelism", 2019): projections into heads and into the MLP by their outputs, projections out of
them by their inputs, so that one all-reduce ends each half of a layer; embedding and head by the
vocabulary.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from kubealign_services.training.adapters.lora import LowRankAdapter

FIELD = "rollout.engine.torch.tensorParallel"

#: Model types whose layers have exactly these weights, besides norms, under these names.
FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})

_BY_OUTPUTS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"})
_BY_INPUTS = frozenset({"o_proj", "down_proj"})


class IndivisibleModel(ValueError):
    """The model cannot be shared by this number of processes. Names the field and its allowed values."""


@dataclass(frozen=True)
class ModelShard:
    """Process `rank` of `size` processes that share a model."""

    rank: int
    size: int

    def block(self, total: int) -> range:
        """Return this process's range of `total` items: equal ranges, only the last ones are shorter."""
        each = -(-total // self.size)
        return range(min(total, self.rank * each), min(total, (self.rank + 1) * each))


def splits_inputs(layer: str) -> bool:
    """Return True where the processes divide the layer's inputs, so that its outputs are summed."""
    return layer.rsplit(".", 1)[-1] in _BY_INPUTS


def splits_outputs(layer: str) -> bool:
    """Return True where the processes divide the layer's outputs, or an embedding's rows."""
    return layer.rsplit(".", 1)[-1] in _BY_OUTPUTS


def shard_extent(name: str, shape: Sequence[int], shard: ModelShard) -> tuple[range, ...]:
    """Return the shard's part of a parameter by its checkpoint name: a range for each dimension.

    The first range is empty where the shard holds nothing: the bias of a summed layer is added once, by
    the first process.
    """
    layer, _, kind = name.rpartition(".")
    first, *rest = (range(size) for size in shape)
    if splits_outputs(layer):
        first = shard.block(shape[0])
    elif splits_inputs(layer) and kind == "bias":
        first = first if shard.rank == 0 else range(0)
    elif splits_inputs(layer) and kind == "weight":
        rest = [shard.block(shape[1])]
    return first, *rest


def shard_tensor(name: str, tensor: Tensor, shard: ModelShard) -> Tensor:
    """Return a view of the shard's part of a parameter by its checkpoint name; empty where the shard holds
    nothing.
    """
    return tensor[tuple(slice(part.start, part.stop) for part in shard_extent(name, tensor.shape, shard))]


def check_divisible(text: Any, shard: ModelShard) -> None:
    """Raise IndivisibleModel for a configuration whose model the processes cannot share."""
    if text.model_type not in FAMILIES:
        raise IndivisibleModel(
            f"{FIELD} is {shard.size}; a model of type {text.model_type!r} runs in one process (1). "
            f"Shared are {', '.join(sorted(FAMILIES))}"
        )
    counts = {
        "attention heads": text.num_attention_heads,
        "key heads": text.num_key_value_heads,
        "columns of the MLP": text.intermediate_size,
    }
    for what, count in counts.items():
        if count % shard.size:
            raise IndivisibleModel(
                f"{FIELD} is {shard.size}; it must divide the model's {count} {what}: "
                f"{_describe_divisors(*counts.values())}"
            )


def shard_config(config: Any, shard: ModelShard) -> Any:
    """Return the configuration of a model of the shard's size.

    The vocabulary has the size of the largest shard: the last shards have unused padding rows.
    """
    text = config.get_text_config()
    local = copy.deepcopy(text)
    local.head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    local.num_attention_heads = text.num_attention_heads // shard.size
    local.num_key_value_heads = text.num_key_value_heads // shard.size
    local.intermediate_size = text.intermediate_size // shard.size
    local.vocab_size = -(-text.vocab_size // shard.size)
    # It would have to be a local row, and is used in training only.
    local.pad_token_id = None
    return local


def _describe_divisors(*counts: int) -> str:
    """Return the allowed numbers of processes, as text."""
    fitting = [n for n in range(1, min(counts) + 1) if not any(count % n for count in counts)]
    return f"it may be {', '.join(map(str, fitting[:8]))}"


def shard_adapter(layer: str, adapter: LowRankAdapter, shard: ModelShard) -> LowRankAdapter:
    """Return the shard's part of a layer's adapter.

    Merging it gives the shard's part of the merged layer; with DoRA, a layer that is divided by its inputs
    needs norms over all shards.
    """
    if splits_outputs(layer):
        outputs = adapter.up.shape[0]
        block = shard.block(outputs)
        # Pad to the number of rows of the shard's weight.
        short = -(-outputs // shard.size) - len(block)
        up = pad(adapter.up[block.start : block.stop], (0, 0, 0, short))
        if adapter.magnitude is None:
            return LowRankAdapter(adapter.down, up, None)
        return LowRankAdapter(adapter.down, up, pad(adapter.magnitude[block.start : block.stop], (0, short)))
    if splits_inputs(layer):
        block = shard.block(adapter.down.shape[1])
        return LowRankAdapter(adapter.down[:, block.start : block.stop], adapter.up, adapter.magnitude)
    return adapter
