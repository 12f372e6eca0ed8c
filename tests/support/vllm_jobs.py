"""Parts of small jobs whose rollout workers generate with vLLM on a CPU."""

from typing import Any

from support.tiny_jobs import ARCHITECTURE

#: Heads of 32 dimensions, the least that vLLM has on a CPU.
VLLM_MODEL: dict[str, Any] = {
    "config": {
        "architecture": ARCHITECTURE
        | {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1},
        "tokenizer": {"train": {"characters": {}}},
    }
}
VLLM_ROLLOUT: dict[str, Any] = {
    "engine": {"vllm": {"precision": "Float32", "maxSequences": 16, "cacheGib": 0.25}},
    "sampling": {"maxTokens": 8},
}
