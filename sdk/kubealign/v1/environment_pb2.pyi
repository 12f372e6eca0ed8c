from kubealign.v1 import options_pb2 as _options_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnvironmentWorkerState(_message.Message):
    __slots__ = ("worker", "address", "incarnation", "sequence", "sessions", "capacity", "leaving")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    worker: str
    address: str
    incarnation: str
    sequence: int
    sessions: int
    capacity: int
    leaving: bool
    def __init__(self, worker: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[str] = ..., sequence: _Optional[int] = ..., sessions: _Optional[int] = ..., capacity: _Optional[int] = ..., leaving: _Optional[bool] = ...) -> None: ...

class EnvironmentReset(_message.Message):
    __slots__ = ("seed", "columns")
    SEED_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    seed: str
    columns: str
    def __init__(self, seed: _Optional[str] = ..., columns: _Optional[str] = ...) -> None: ...

class EnvironmentStep(_message.Message):
    __slots__ = ("action",)
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: str
    def __init__(self, action: _Optional[str] = ...) -> None: ...

class EnvironmentRequest(_message.Message):
    __slots__ = ("reset", "step")
    RESET_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    reset: EnvironmentReset
    step: EnvironmentStep
    def __init__(self, reset: _Optional[_Union[EnvironmentReset, _Mapping]] = ..., step: _Optional[_Union[EnvironmentStep, _Mapping]] = ...) -> None: ...

class EnvironmentFailure(_message.Message):
    __slots__ = ("message", "permanent")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    message: str
    permanent: bool
    def __init__(self, message: _Optional[str] = ..., permanent: _Optional[bool] = ...) -> None: ...

class EnvironmentReply(_message.Message):
    __slots__ = ("observation", "step", "failure", "refused")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    observation: str
    step: str
    failure: EnvironmentFailure
    refused: bool
    def __init__(self, observation: _Optional[str] = ..., step: _Optional[str] = ..., failure: _Optional[_Union[EnvironmentFailure, _Mapping]] = ..., refused: _Optional[bool] = ...) -> None: ...
