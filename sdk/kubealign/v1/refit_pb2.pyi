from kubealign.v1 import batch_pb2 as _batch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishWeightsRequest(_message.Message):
    __slots__ = ("fence", "version")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    fence: int
    version: int
    def __init__(self, fence: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class TensorEntry(_message.Message):
    __slots__ = ("name", "shape", "dtype", "offset_bytes", "size_bytes", "checksum", "start", "whole_shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    WHOLE_SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    offset_bytes: int
    size_bytes: int
    checksum: str
    start: _containers.RepeatedScalarFieldContainer[int]
    whole_shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[str] = ..., start: _Optional[_Iterable[int]] = ..., whole_shape: _Optional[_Iterable[int]] = ...) -> None: ...

class WeightsPart(_message.Message):
    __slots__ = ("rank", "tensors", "size_bytes", "sources", "delta_sizes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DELTA_SIZES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorEntry]
    size_bytes: int
    sources: _containers.RepeatedCompositeFieldContainer[WeightsSource]
    delta_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rank: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorEntry, _Mapping]]] = ..., size_bytes: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[WeightsSource, _Mapping]]] = ..., delta_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class WeightsSource(_message.Message):
    __slots__ = ("shared_memory", "stream", "collective")
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    shared_memory: SharedMemorySource
    stream: StreamSource
    collective: CollectiveSource
    def __init__(self, shared_memory: _Optional[_Union[SharedMemorySource, _Mapping]] = ..., stream: _Optional[_Union[StreamSource, _Mapping]] = ..., collective: _Optional[_Union[CollectiveSource, _Mapping]] = ...) -> None: ...

class SharedMemorySource(_message.Message):
    __slots__ = ("host", "name")
    HOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    host: str
    name: str
    def __init__(self, host: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class StreamSource(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class CollectiveSource(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("tokens", "logprobs", "tolerance")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    tolerance: float
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., tolerance: _Optional[float] = ...) -> None: ...

class AdapterEncoding(_message.Message):
    __slots__ = ("scale",)
    SCALE_FIELD_NUMBER: _ClassVar[int]
    scale: float
    def __init__(self, scale: _Optional[float] = ...) -> None: ...

class WrittenPart(_message.Message):
    __slots__ = ("part", "error")
    PART_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    part: WeightsPart
    error: str
    def __init__(self, part: _Optional[_Union[WeightsPart, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class WeightsAnnouncement(_message.Message):
    __slots__ = ("weights", "parts", "size_bytes", "base", "canary", "adapter")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    weights: _batch_pb2.WeightsId
    parts: _containers.RepeatedCompositeFieldContainer[WeightsPart]
    size_bytes: int
    base: _batch_pb2.WeightsId
    canary: Canary
    adapter: AdapterEncoding
    def __init__(self, weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[WeightsPart, _Mapping]]] = ..., size_bytes: _Optional[int] = ..., base: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., adapter: _Optional[_Union[AdapterEncoding, _Mapping]] = ...) -> None: ...

class FetchWeightsRequest(_message.Message):
    __slots__ = ("weights", "tensors", "delta", "rank", "asker", "address", "lost", "skip")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    weights: _batch_pb2.WeightsId
    tensors: _containers.RepeatedScalarFieldContainer[int]
    delta: bool
    rank: int
    asker: str
    address: str
    lost: _containers.RepeatedScalarFieldContainer[str]
    skip: int
    def __init__(self, weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., tensors: _Optional[_Iterable[int]] = ..., delta: _Optional[bool] = ..., rank: _Optional[int] = ..., asker: _Optional[str] = ..., address: _Optional[str] = ..., lost: _Optional[_Iterable[str]] = ..., skip: _Optional[int] = ...) -> None: ...

class WeightsChunk(_message.Message):
    __slots__ = ("offset_bytes", "data", "instead")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    data: bytes
    instead: str
    def __init__(self, offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., instead: _Optional[str] = ...) -> None: ...

class JoinBroadcastRequest(_message.Message):
    __slots__ = ("weights", "asker", "group", "accelerator")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
    weights: _batch_pb2.WeightsId
    asker: str
    group: str
    accelerator: bool
    def __init__(self, weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., asker: _Optional[str] = ..., group: _Optional[str] = ..., accelerator: _Optional[bool] = ...) -> None: ...

class JoinBroadcastReply(_message.Message):
    __slots__ = ("group", "store", "rank", "world_size", "bucket_bytes", "accelerator")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    store: str
    rank: int
    world_size: int
    bucket_bytes: int
    accelerator: bool
    def __init__(self, group: _Optional[str] = ..., store: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., bucket_bytes: _Optional[int] = ..., accelerator: _Optional[bool] = ...) -> None: ...

class RefitAcknowledgement(_message.Message):
    __slots__ = ("worker", "weights", "error", "canary_gap", "transport", "seconds", "received_bytes", "delta_parts")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANARY_GAP_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELTA_PARTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    weights: _batch_pb2.WeightsId
    error: str
    canary_gap: float
    transport: str
    seconds: float
    received_bytes: int
    delta_parts: int
    def __init__(self, worker: _Optional[str] = ..., weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., error: _Optional[str] = ..., canary_gap: _Optional[float] = ..., transport: _Optional[str] = ..., seconds: _Optional[float] = ..., received_bytes: _Optional[int] = ..., delta_parts: _Optional[int] = ...) -> None: ...
