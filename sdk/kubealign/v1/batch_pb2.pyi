from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PackedBatch(_message.Message):
    __slots__ = ("sample_ids", "columns", "digest")
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    sample_ids: _containers.RepeatedScalarFieldContainer[str]
    columns: bytes
    digest: str
    def __init__(self, sample_ids: _Optional[_Iterable[str]] = ..., columns: _Optional[bytes] = ..., digest: _Optional[str] = ...) -> None: ...

class WeightsId(_message.Message):
    __slots__ = ("fence", "version", "digest")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    fence: int
    version: int
    digest: str
    def __init__(self, fence: _Optional[int] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ...) -> None: ...
