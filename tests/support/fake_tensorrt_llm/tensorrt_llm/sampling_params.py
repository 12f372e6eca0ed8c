"""Sampling settings of one request."""

from dataclasses import dataclass
from enum import StrEnum


class LogprobMode(StrEnum):
    """Distribution of the reported log-probabilities: before or after temperature and truncation."""

    RAW = "raw"
    PROCESSED = "processed_logprobs"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The settings that kubealign uses."""

    end_id: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobMode = LogprobMode.RAW

    def __post_init__(self) -> None:
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; it is above 0")
        if self.n != 1:
            raise ValueError(f"n is {self.n}; this stand-in has 1")
