from kubealign.v1 import options_pb2 as _options_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ProgressRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Progress(_message.Message):
    __slots__ = ("fence", "step", "max_steps", "waiting_for")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    fence: int
    step: int
    max_steps: int
    waiting_for: str
    def __init__(self, fence: _Optional[int] = ..., step: _Optional[int] = ..., max_steps: _Optional[int] = ..., waiting_for: _Optional[str] = ...) -> None: ...
