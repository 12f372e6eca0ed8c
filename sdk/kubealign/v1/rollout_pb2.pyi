from kubealign.v1 import batch_pb2 as _batch_pb2
from kubealign.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_FAILED: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_FAILED: FinishReason

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "stop", "stop_token_ids")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkItem(_message.Message):
    __slots__ = ("fence", "group_id", "attempt", "prompt_tokens", "samples", "seeds", "min_version", "sampling", "columns", "deadline", "purpose", "greedy_samples", "continuations", "reference_samples", "remaining_seconds")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    GREEDY_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    fence: int
    group_id: str
    attempt: int
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    samples: int
    seeds: _containers.RepeatedScalarFieldContainer[int]
    min_version: int
    sampling: Sampling
    columns: bytes
    deadline: float
    purpose: str
    greedy_samples: int
    continuations: _containers.RepeatedCompositeFieldContainer[Continuation]
    reference_samples: int
    remaining_seconds: float
    def __init__(self, fence: _Optional[int] = ..., group_id: _Optional[str] = ..., attempt: _Optional[int] = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., samples: _Optional[int] = ..., seeds: _Optional[_Iterable[int]] = ..., min_version: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., columns: _Optional[bytes] = ..., deadline: _Optional[float] = ..., purpose: _Optional[str] = ..., greedy_samples: _Optional[int] = ..., continuations: _Optional[_Iterable[_Union[Continuation, _Mapping]]] = ..., reference_samples: _Optional[int] = ..., remaining_seconds: _Optional[float] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("fence", "group_id", "attempt", "sample", "worker", "sequence", "finish_reason", "error", "columns", "purpose", "seconds", "response", "turns", "tool_errors", "temperature", "episode_rewards", "group")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TOOL_ERRORS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    EPISODE_REWARDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    fence: int
    group_id: str
    attempt: int
    sample: int
    worker: str
    sequence: _batch_pb2.PackedBatch
    finish_reason: FinishReason
    error: str
    columns: bytes
    purpose: str
    seconds: float
    response: str
    turns: int
    tool_errors: int
    temperature: float
    episode_rewards: _containers.RepeatedCompositeFieldContainer[EpisodeReward]
    group: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, fence: _Optional[int] = ..., group_id: _Optional[str] = ..., attempt: _Optional[int] = ..., sample: _Optional[int] = ..., worker: _Optional[str] = ..., sequence: _Optional[_Union[_batch_pb2.PackedBatch, _Mapping]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., error: _Optional[str] = ..., columns: _Optional[bytes] = ..., purpose: _Optional[str] = ..., seconds: _Optional[float] = ..., response: _Optional[str] = ..., turns: _Optional[int] = ..., tool_errors: _Optional[int] = ..., temperature: _Optional[float] = ..., episode_rewards: _Optional[_Iterable[_Union[EpisodeReward, _Mapping]]] = ..., group: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class EpisodeReward(_message.Message):
    __slots__ = ("source", "reward", "turns", "metrics", "explanation")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    source: str
    reward: float
    turns: _containers.RepeatedCompositeFieldContainer[TurnReward]
    metrics: _containers.ScalarMap[str, float]
    explanation: str
    def __init__(self, source: _Optional[str] = ..., reward: _Optional[float] = ..., turns: _Optional[_Iterable[_Union[TurnReward, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., explanation: _Optional[str] = ...) -> None: ...

class TurnReward(_message.Message):
    __slots__ = ("token", "reward")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    token: int
    reward: float
    def __init__(self, token: _Optional[int] = ..., reward: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("item",)
    ITEM_FIELD_NUMBER: _ClassVar[int]
    item: WorkItem
    def __init__(self, item: _Optional[_Union[WorkItem, _Mapping]] = ...) -> None: ...

class RolloutStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RolloutStatus(_message.Message):
    __slots__ = ("worker", "weights", "running", "waiting", "generated_tokens", "quarantined")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    weights: _batch_pb2.WeightsId
    running: int
    waiting: int
    generated_tokens: int
    quarantined: bool
    def __init__(self, worker: _Optional[str] = ..., weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., quarantined: _Optional[bool] = ...) -> None: ...
