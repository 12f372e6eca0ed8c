from kubealign.v1 import options_pb2 as _options_pb2
from kubealign.v1 import rollout_pb2 as _rollout_pb2
from kubealign.v1 import training_pb2 as _training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Score(_message.Message):
    __slots__ = ("fence", "group_id", "attempt", "sample", "digest", "source", "reward", "logprobs", "error", "permanent", "worker", "seconds", "candidates", "candidates_digest", "attributes", "disagreement", "failure", "metrics", "explanation", "steps")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    fence: int
    group_id: str
    attempt: int
    sample: int
    digest: str
    source: str
    reward: float
    logprobs: bytes
    error: str
    permanent: bool
    worker: str
    seconds: float
    candidates: bytes
    candidates_digest: str
    attributes: _containers.ScalarMap[str, float]
    disagreement: float
    failure: str
    metrics: _containers.ScalarMap[str, float]
    explanation: str
    steps: _containers.RepeatedCompositeFieldContainer[_rollout_pb2.TurnReward]
    def __init__(self, fence: _Optional[int] = ..., group_id: _Optional[str] = ..., attempt: _Optional[int] = ..., sample: _Optional[int] = ..., digest: _Optional[str] = ..., source: _Optional[str] = ..., reward: _Optional[float] = ..., logprobs: _Optional[bytes] = ..., error: _Optional[str] = ..., permanent: _Optional[bool] = ..., worker: _Optional[str] = ..., seconds: _Optional[float] = ..., candidates: _Optional[bytes] = ..., candidates_digest: _Optional[str] = ..., attributes: _Optional[_Mapping[str, float]] = ..., disagreement: _Optional[float] = ..., failure: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., explanation: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[_rollout_pb2.TurnReward, _Mapping]]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[_rollout_pb2.Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[_rollout_pb2.Rollout, _Mapping]]] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    def __init__(self, scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ...) -> None: ...
