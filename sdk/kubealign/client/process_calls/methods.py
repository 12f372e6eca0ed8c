"""Methods of the gRPC services in protos/: names, fields of requests, conversion from and to JSON. Pure."""

import importlib
import json
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

import kubealign.v1
from kubealign.client.errors import NotPossible
from kubealign.v1 import options_pb2

_PACKAGE = "kubealign.v1."
_INDENT = "  "


class MalformedRequest(ValueError):
    """The request is not JSON, or does not fit the message of the method. Names the field."""


@dataclass(frozen=True)
class ServiceMethod:
    """One method of a service."""

    descriptor: MethodDescriptor

    @property
    def name(self) -> str:
        """Service and method: RolloutService.Generate."""
        return f"{self.descriptor.containing_service.name}.{self.descriptor.name}"

    @property
    def path(self) -> str:
        """Path of the method in HTTP/2: /kubealign.v1.RolloutService/Generate."""
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def callers(self) -> tuple[str, ...]:
        """Roles whose certificate may call the method."""
        extension: Any = options_pb2.callers
        return tuple(self.descriptor.GetOptions().Extensions[extension].roles)

    @property
    def streams(self) -> bool:
        """True if the method returns a stream of replies."""
        return bool(self.descriptor.server_streaming)

    @property
    def request_class(self) -> type[Message]:
        return message_factory.GetMessageClass(self.descriptor.input_type)

    @property
    def reply_class(self) -> type[Message]:
        return message_factory.GetMessageClass(self.descriptor.output_type)

    def parse_request(self, text: str) -> Message:
        """Return the request in JSON as a message; without text, an empty message.

        Raises MalformedRequest.
        """
        request = self.request_class()
        try:
            document = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise MalformedRequest(f"the request of {self.name} is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise MalformedRequest(f"the request of {self.name} must be a JSON object: {{FIELD: VALUE, ...}}")
        _check_fields(self.name, self.descriptor.input_type, document, "")
        try:
            json_format.ParseDict(document, request)
        except json_format.ParseError as error:
            detail = str(error).replace(_PACKAGE, "").rstrip(".")
            raise MalformedRequest(f"the request of {self.name} is invalid: {detail}") from None
        return request

    def describe(self) -> str:
        """Return the method's name, reply and callers in a line, followed by the fields of its request."""
        reply = f"{'a stream of ' if self.streams else ''}{self.descriptor.output_type.name}"
        head = f"{self.name} returns {reply} (callers: {', '.join(self.callers) or 'none'})"
        return "\n".join((head, *_describe_fields(self.descriptor.input_type, _INDENT, ())))


def reply_to_json(reply: Message) -> dict[str, Any]:
    """Return a reply as a JSON object, with the field names of the proto and with fields that hold zero."""
    document: dict[str, Any] = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return document


def methods_of(services: Iterable[str]) -> list[ServiceMethod]:
    """Return the methods of these services (full names); services that are not in protos/ are left out."""
    for module in pkgutil.iter_modules(kubealign.v1.__path__):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"{_PACKAGE}{module.name}")
    pool = descriptor_pool.Default()
    methods: list[ServiceMethod] = []
    for service in sorted(services):
        if service.startswith(_PACKAGE):
            methods += map(ServiceMethod, pool.FindServiceByName(service).methods)
    return methods


def find_method(process: str, methods: Sequence[ServiceMethod], name: str) -> ServiceMethod:
    """Return the method called `Method` or `Service.Method`.

    Raises NotPossible where the process serves no such method, or several of this name.
    """
    name = name.removeprefix(_PACKAGE)
    matches = [method for method in methods if name in (method.name, method.descriptor.name)]
    if len(matches) == 1:
        return matches[0]
    candidates = ", ".join(method.name for method in matches or methods)
    if matches:
        raise NotPossible(f"{process} serves {name} several times: choose one of {candidates}")
    raise NotPossible(f"{process} has no method {name}: there are {candidates or 'none'}")


def _check_fields(method: str, message: Descriptor, document: Mapping[str, Any], path: str) -> None:
    """Raise MalformedRequest for the first field of a JSON object that the message does not have."""
    fields = {field.name: field for field in message.fields}
    by_json_name = {field.json_name: field for field in message.fields}
    for name, value in document.items():
        field = fields.get(name) or by_json_name.get(name)
        if field is None:
            known = ", ".join(fields) or "none"
            raise MalformedRequest(f"{method} has no field {path}{name}: {message.name} has {known}")
        if field.message_type is None or _is_map(field):
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _check_fields(method, field.message_type, item, f"{path}{name}.")


def _describe_fields(message: Descriptor, indent: str, parents: tuple[str, ...]) -> Iterator[str]:
    for field in message.fields:
        yield f"{indent}{field.name}: {_type_name(field)}"
        nested = field.message_type
        if nested is not None and not _is_map(field) and nested.full_name not in parents:
            yield from _describe_fields(nested, indent + _INDENT, (*parents, message.full_name))


def _type_name(field: FieldDescriptor) -> str:
    if _is_map(field):
        assert field.message_type is not None
        key, value = field.message_type.fields
        return f"map of {_type_name(key)} to {_type_name(value)}"
    if field.message_type is not None:
        name = field.message_type.name
    elif field.enum_type is not None:
        name = " | ".join(value.name for value in field.enum_type.values)
    else:
        types: Any = descriptor_pb2.FieldDescriptorProto.Type
        name = types.Name(field.type).removeprefix("TYPE_").lower()
        name = "bytes in base64" if name == "bytes" else name
    return f"list of {name}" if field.is_repeated else name


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
