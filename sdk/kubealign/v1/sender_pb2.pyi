from kubealign.v1 import options_pb2 as _options_pb2
from kubealign.v1 import refit_pb2 as _refit_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
