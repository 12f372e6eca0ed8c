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
    __slots__ = ("name", "shape", "dtype", "offset_bytes", "size_bytes", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    offset_bytes: int
    size_bytes: int
    checksum: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class WeightsSource(_message.Message):
    __slots__ = ("shared_memory", "stream")
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    shared_memory: SharedMemorySource
    stream: StreamSource
    def __init__(self, shared_memory: _Optional[_Union[SharedMemorySource, _Mapping]] = ..., stream: _Optional[_Union[StreamSource, _Mapping]] = ...) -> None: ...

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

class WeightsAnnouncement(_message.Message):
    __slots__ = ("weights", "tensors", "size_bytes", "sources", "canary", "adapter")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    weights: _batch_pb2.WeightsId
    tensors: _containers.RepeatedCompositeFieldContainer[TensorEntry]
    size_bytes: int
    sources: _containers.RepeatedCompositeFieldContainer[WeightsSource]
    canary: Canary
    adapter: AdapterEncoding
    def __init__(self, weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[TensorEntry, _Mapping]]] = ..., size_bytes: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[WeightsSource, _Mapping]]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., adapter: _Optional[_Union[AdapterEncoding, _Mapping]] = ...) -> None: ...

class FetchWeightsRequest(_message.Message):
    __slots__ = ("weights", "tensors")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    weights: _batch_pb2.WeightsId
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., tensors: _Optional[_Iterable[str]] = ...) -> None: ...

class WeightsChunk(_message.Message):
    __slots__ = ("offset_bytes", "data")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    data: bytes
    def __init__(self, offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RefitAcknowledgement(_message.Message):
    __slots__ = ("worker", "weights", "error", "canary_gap", "transport", "seconds", "received_bytes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANARY_GAP_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    weights: _batch_pb2.WeightsId
    error: str
    canary_gap: float
    transport: str
    seconds: float
    received_bytes: int
    def __init__(self, worker: _Optional[str] = ..., weights: _Optional[_Union[_batch_pb2.WeightsId, _Mapping]] = ..., error: _Optional[str] = ..., canary_gap: _Optional[float] = ..., transport: _Optional[str] = ..., seconds: _Optional[float] = ..., received_bytes: _Optional[int] = ...) -> None: ...
