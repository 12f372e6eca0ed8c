from kubealign.v1 import batch_pb2 as _batch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    def __init__(self, fence: _Optional[int] = ...) -> None: ...

class TrainingState(_message.Message):
    __slots__ = ("fence", "loaded", "step", "driver_state", "world_size", "driver_metrics", "metrics")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DRIVER_STATE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_METRICS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    fence: int
    loaded: bool
    step: int
    driver_state: bytes
    world_size: int
    driver_metrics: _batch_pb2.Metrics
    metrics: _batch_pb2.Metrics
    def __init__(self, fence: _Optional[int] = ..., loaded: _Optional[bool] = ..., step: _Optional[int] = ..., driver_state: _Optional[bytes] = ..., world_size: _Optional[int] = ..., driver_metrics: _Optional[_Union[_batch_pb2.Metrics, _Mapping]] = ..., metrics: _Optional[_Union[_batch_pb2.Metrics, _Mapping]] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("fence", "directory", "step", "driver_state")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DRIVER_STATE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    directory: str
    step: int
    driver_state: bytes
    def __init__(self, fence: _Optional[int] = ..., directory: _Optional[str] = ..., step: _Optional[int] = ..., driver_state: _Optional[bytes] = ...) -> None: ...

class TrainStepRequest(_message.Message):
    __slots__ = ("fence", "step", "batch", "update", "driver_state", "driver_metrics")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_STATE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_METRICS_FIELD_NUMBER: _ClassVar[int]
    fence: int
    step: int
    batch: _batch_pb2.PackedBatch
    update: bool
    driver_state: bytes
    driver_metrics: _batch_pb2.Metrics
    def __init__(self, fence: _Optional[int] = ..., step: _Optional[int] = ..., batch: _Optional[_Union[_batch_pb2.PackedBatch, _Mapping]] = ..., update: _Optional[bool] = ..., driver_state: _Optional[bytes] = ..., driver_metrics: _Optional[_Union[_batch_pb2.Metrics, _Mapping]] = ...) -> None: ...

class TrainStepReply(_message.Message):
    __slots__ = ("step", "metrics")
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    step: int
    metrics: _batch_pb2.Metrics
    def __init__(self, step: _Optional[int] = ..., metrics: _Optional[_Union[_batch_pb2.Metrics, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("fence", "batch")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    fence: int
    batch: _batch_pb2.PackedBatch
    def __init__(self, fence: _Optional[int] = ..., batch: _Optional[_Union[_batch_pb2.PackedBatch, _Mapping]] = ...) -> None: ...

class EvaluateReply(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _batch_pb2.Metrics
    def __init__(self, metrics: _Optional[_Union[_batch_pb2.Metrics, _Mapping]] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ("fence", "batch", "outputs", "learned")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    fence: int
    batch: _batch_pb2.PackedBatch
    outputs: _containers.RepeatedScalarFieldContainer[str]
    learned: bool
    def __init__(self, fence: _Optional[int] = ..., batch: _Optional[_Union[_batch_pb2.PackedBatch, _Mapping]] = ..., outputs: _Optional[_Iterable[str]] = ..., learned: _Optional[bool] = ...) -> None: ...

class TopLogprobsRequest(_message.Message):
    __slots__ = ("batch", "count", "vocabulary")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    batch: _batch_pb2.PackedBatch
    count: int
    vocabulary: int
    def __init__(self, batch: _Optional[_Union[_batch_pb2.PackedBatch, _Mapping]] = ..., count: _Optional[int] = ..., vocabulary: _Optional[int] = ...) -> None: ...

class ForwardReply(_message.Message):
    __slots__ = ("columns", "digest")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    columns: bytes
    digest: str
    def __init__(self, columns: _Optional[bytes] = ..., digest: _Optional[str] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("fence", "step", "directory")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    fence: int
    step: int
    directory: str
    def __init__(self, fence: _Optional[int] = ..., step: _Optional[int] = ..., directory: _Optional[str] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("name", "size_bytes", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    digest: str
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("fence", "step", "directory")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    fence: int
    step: int
    directory: str
    def __init__(self, fence: _Optional[int] = ..., step: _Optional[int] = ..., directory: _Optional[str] = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, files: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...
