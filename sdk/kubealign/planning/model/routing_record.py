"""Size of a token's recorded experts, which rollouts carry with rollout.routingReplay."""

from collections.abc import Mapping
from typing import Any

#: Most experts whose numbers fit into a byte together with the mark of a token without a record.
MAX_BYTE_EXPERTS = 255
# Numbers for a config that leaves them out: the largest that a type has by default.
_DEFAULT_LAYERS, _DEFAULT_EXPERTS, _DEFAULT_TOP_K = 32, 128, 8


def routing_record_bytes(layers: int, experts: int, top_k: int) -> int:
    """Return the bytes of one token's record.

    Args:
        layers: Number of layers with experts.
        experts: Number of experts of a layer.
        top_k: Number of experts of a token.
    """
    return layers * top_k * (1 if experts <= MAX_BYTE_EXPERTS else 2)


def max_routing_record_bytes(config: Mapping[str, Any]) -> int:
    """Return the most bytes of one token's record for a config.json: as if all layers had experts."""
    layers = _size(config, _DEFAULT_LAYERS, "num_hidden_layers")
    experts = _size(config, _DEFAULT_EXPERTS, "num_experts", "num_local_experts")
    return routing_record_bytes(layers, experts, _size(config, _DEFAULT_TOP_K, "num_experts_per_tok"))


def _size(config: Mapping[str, Any], default: int, *names: str) -> int:
    stated = (config[name] for name in names if isinstance(config.get(name), int))
    return int(next(stated, default))
