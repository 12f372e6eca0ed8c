"""Parses YAML text into documents: plain values with the source line of each."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.loading.parameters import MalformedParameter, MissingParameter, substitute
from kubealign.spec.paths import DocumentPath, format_path

#: YAML aliases can expand a short text to any number of values; a job has a few hundred.
_MAX_VALUES = 100_000

_TAG = "tag:yaml.org,2002:"


@dataclass
class YamlDocument:
    """One YAML document of a file."""

    #: Index among the documents of the file, from 0.
    index: int
    value: Any
    #: Path -> line of every value, from 1.
    lines: dict[DocumentPath, int]
    #: Values with a parameter or from the command line, as text; the field determines their type.
    untyped_texts: dict[DocumentPath, str] = field(default_factory=dict)
    #: Path of a value set on the command line -> the option that set it.
    origins: dict[DocumentPath, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """metadata.name, if it is text."""
        metadata = self.value.get("metadata") if isinstance(self.value, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else None

    def line_of(self, path: DocumentPath) -> int | None:
        """Return the line of the value, or of the innermost enclosing value that has a line."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def error(self, path: DocumentPath, message: str, value: str = "") -> SpecError:
        """Build an error about the value at this path."""
        origin = next((o for at, o in self.origins.items() if path[: len(at)] == at), "")
        line = None if origin else self.line_of(path)
        if not origin and path:
            origin = next((o for at, o in self.origins.items() if at[: len(path)] == path), "")
        return SpecError(
            message, format_path(path), value, document=self.index, job=self.name, line=line, origin=origin
        )


class _Loader(yaml.SafeLoader):
    """YAML loader with Kubernetes' scalar types: no dates, no base 60, and 1e-7 is a number."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name)


_NUMBER = list("-+0123456789.")
for tag, pattern, first in (
    (
        "bool",
        r"^(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$",
        list("tTfFyYnNoO"),
    ),
    ("int", r"^[-+]?[0-9][0-9_]*$", _NUMBER),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)$", _NUMBER),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)[eE][-+]?[0-9]+$", _NUMBER),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", _NUMBER),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + tag, re.compile(pattern), first)


_SCALAR_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "merge": str,
    "null": lambda text: None,
    "bool": lambda text: text.lower() in ("true", "yes", "on"),
    "int": lambda text: int(text.replace("_", "")),
    "float": lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower()).replace("_", "")),
}


def parse_scalar(text: str) -> Any:
    """Parse text as an unquoted YAML value; return the text itself if it is not a single YAML value."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        builder = _DocumentBuilder(loader, {}, set())
        value = builder.build(node)
        return text if builder.errors else value
    except yaml.YAMLError:
        return text


def parse_documents(
    text: str, parameters: Mapping[str, str], used: set[str]
) -> tuple[list[YamlDocument], list[SpecError]]:
    """Parse a text into its documents, without empty ones, and the YAML errors.

    Args:
        used: Receives the names of all parameters in the text.
    """
    result: list[YamlDocument] = []
    errors: list[SpecError] = []
    try:
        loader = _Loader(text)
        for index, node in enumerate(_iter_nodes(loader)):
            builder = _DocumentBuilder(loader, parameters, used)
            document = YamlDocument(index, builder.build(node), builder.lines, builder.texts)
            errors += [replace(error, document=index, job=document.name) for error in builder.errors]
            if document.value is not None:
                result.append(document)
    except yaml.YAMLError as error:
        errors.append(_syntax_error(error, text))
    except RecursionError:
        errors.append(SpecError("is not a job: its values are nested too deeply"))
    return result, errors


def _iter_nodes(loader: _Loader) -> Iterator[Node]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            yield node


def _syntax_error(error: yaml.YAMLError, text: str) -> SpecError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    message = f"is not YAML: {problem}"
    if mark is None:
        return SpecError(message)
    lines = text.splitlines()
    if mark.line < len(lines) and "${" in lines[mark.line]:
        message += '; inside { } and [ ] put a parameter in quotes: "${NAME}"'
    if "\\t" in problem:
        message += "; indent with spaces"
    return SpecError(message, line=mark.line + 1)


class _DocumentBuilder:
    """Builds the values of one document from its YAML nodes."""

    def __init__(self, loader: _Loader, parameters: Mapping[str, str], used: set[str]) -> None:
        self.lines: dict[DocumentPath, int] = {}
        self.texts: dict[DocumentPath, str] = {}
        self.errors: list[SpecError] = []
        self._loader = loader
        self._parameters = parameters
        self._used = used
        self._open: list[Node] = []
        self._flat: set[int] = set()
        self._count = 0

    def build(self, node: Node) -> Any:
        """Return the value of the document's root node."""
        return self._value(node, (), node)

    def _add_error(self, node: Node, path: DocumentPath, message: str, value: str = "") -> None:
        self.errors.append(SpecError(message, format_path(path), value, line=node.start_mark.line + 1))

    def _value(self, node: Node, path: DocumentPath, key: Node) -> Any:
        self._count += 1
        if self._count > _MAX_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {_MAX_VALUES} values")
        self.lines[path] = key.start_mark.line + 1
        if any(node is open_node for open_node in self._open):
            self._add_error(node, path, "refers to itself: write the value out")
            return None
        self._open.append(node)
        try:
            if isinstance(node, ScalarNode):
                return self._scalar(node, path)
            if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
                return [self._value(item, (*path, index), item) for index, item in enumerate(node.value)]
            if isinstance(node, MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
            return self._unknown_tag(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: MappingNode, path: DocumentPath) -> dict[str, Any]:
        if id(node) not in self._flat:
            self._flat.add(id(node))
            seen: dict[str, int] = {}
            for key, _ in node.value:
                if isinstance(key, ScalarNode) and key.tag != _TAG + "merge":
                    if key.value in seen:
                        self._add_error(
                            key, (*path, key.value), f"occurs twice, first in line {seen[key.value]}"
                        )
                    seen[key.value] = key.start_mark.line + 1
            self._loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                result[key.value] = self._value(value, (*path, key.value), key)
            else:
                self._add_error(key, path, "has a field whose name is not text")
        return result

    def _scalar(self, node: ScalarNode, path: DocumentPath) -> Any:
        tag, text = node.tag, node.value
        if "${" in text:
            try:
                text = substitute(text, self._parameters, self._used)
            except (MissingParameter, MalformedParameter) as error:
                self._add_error(node, path, str(error), format_value(node.value))
                return node.value
            self.texts[path] = text
            if node.style is None:
                tag = str(self._loader.resolve(ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
        kind = tag.removeprefix(_TAG)
        if kind not in _SCALAR_PARSERS:
            return self._unknown_tag(node, path)
        try:
            return _SCALAR_PARSERS[kind](text)
        except ValueError:
            self._add_error(node, path, f"is tagged as {kind} but is not one", format_value(text))
            return None

    def _unknown_tag(self, node: Node, path: DocumentPath) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self._add_error(node, path, f"has the tag {tag}, which jobs do not support: remove it")
