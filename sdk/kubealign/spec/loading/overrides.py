"""Overrides from the command line: `spec.seed=2`, or `sft:spec.maxSteps=5` for one job."""

import re
from dataclasses import dataclass
from typing import Any

from kubealign.spec.loading.yaml_documents import YamlDocument, parse_scalar
from kubealign.spec.paths import DocumentPath

_OVERRIDE = re.compile(
    r"(?:(?P<job>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?):)?(?P<path>[^=:]+)=(?P<value>.*)", re.DOTALL
)
_PATH_PART = re.compile(r"(?P<key>[^.\[\]]+)|\[(?P<index>[0-9]+)\]")
_ROOTS = ("apiVersion", "kind", "metadata", "spec")


class InvalidOverride(ValueError):
    """An override that cannot be parsed or does not fit the document."""


@dataclass(frozen=True)
class Override:
    """A value for one path, in one job or (job is None) in every job of the file."""

    text: str
    job: str | None
    path: DocumentPath
    value: str

    @classmethod
    def parse(cls, text: str) -> "Override":
        """Parse PATH=VALUE or JOB:PATH=VALUE. Raises InvalidOverride."""
        match = _OVERRIDE.fullmatch(text)
        if match is None:
            raise InvalidOverride(
                "must be PATH=VALUE, or JOB:PATH=VALUE for one job alone, such as spec.seed=2"
            )
        path = match["path"].strip()
        parts = _parse_path(path)
        if parts[0] not in _ROOTS:
            raise InvalidOverride(f"{path} is not a path in a job: did you mean spec.{path}?")
        return cls(text, match["job"], parts, match["value"])

    def applies(self, document: YamlDocument) -> bool:
        """Return True if the override applies to the document's job."""
        return self.job is None or self.job == document.name

    def apply(self, document: YamlDocument) -> None:
        """Set the value in the document and create missing parent objects. Raises InvalidOverride."""
        path: list[str | int] = []
        holder: Any = document.value
        for part, following in zip(self.path, (*self.path[1:], None), strict=True):
            key = _resolve_key(holder, part, path)
            path.append(key)
            if following is None:
                holder[key] = parse_scalar(self.value)
            else:
                if isinstance(holder, dict) and holder.get(key) is None:
                    holder[key] = {}
                holder = holder[key]
        full_path = tuple(path)
        document.untyped_texts = {
            p: t for p, t in document.untyped_texts.items() if p[: len(full_path)] != full_path
        } | {full_path: self.value}
        document.origins[full_path] = f"--set {self.text}"


def _parse_path(path: str) -> DocumentPath:
    """Parse spec.rewards[0].name or spec.rewards.0.name into keys and indices."""
    parts: list[str | int] = []
    position = 0
    while position < len(path):
        if position and path[position] == ".":
            position += 1
        match = _PATH_PART.match(path, position)
        if match is None:
            raise InvalidOverride(f"{path} is not a path in a job: write it as spec.rewards[0].name")
        parts.append(match["key"] if match["index"] is None else int(match["index"]))
        position = match.end()
    return tuple(parts)


def _resolve_key(holder: Any, part: str | int, parents: list[str | int]) -> str | int:
    """Resolve a path part to a key of `holder`; list items are addressed by index or name."""
    where = ".".join(map(str, parents)) or "the document"
    if isinstance(holder, dict):
        return str(part)
    if not isinstance(holder, list):
        raise InvalidOverride(f"{where} is neither an object nor a list: nothing can be set in it")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in holder]
    if isinstance(part, str) and part in names:
        return names.index(part)
    index = int(part) if isinstance(part, int) or part.isdecimal() else len(holder)
    if index >= len(holder):
        entry_names = ", ".join(str(name) for name in names if name is not None)
        raise InvalidOverride(
            f"{where} has no entry {part}: it has {len(holder)}"
            + (f" ({entry_names})" if entry_names else "")
        )
    return index
