"""Configuration of the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KvCacheConfig:
    """The settings that kubealign uses."""

    free_gpu_memory_fraction: float = 0.9
    enable_block_reuse: bool = True


@dataclass(frozen=True)
class SleepConfig:
    """Allows the engine to release its memory."""
