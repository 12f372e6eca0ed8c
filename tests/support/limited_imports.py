"""Limits what a fresh interpreter can import, as an environment with fewer packages would.

`python limited_imports.py LIMITS.json PROGRAM.py ARGUMENT...` runs the program with the limits.
"""

import builtins
import json
import re
import runpy
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_OWN = ("kubealign", "support")


def with_requirements(distributions: Iterable[str]) -> set[str]:
    """Return the normalised names of installed distributions and of everything that they require here."""
    # Imported on demand: the limited process does not need it.
    from packaging.requirements import Requirement

    result: set[str] = set()
    waiting = [normalised(name) for name in distributions]
    while waiting:
        name = waiting.pop()
        if name in result:
            continue
        result.add(name)
        try:
            requirements = [Requirement(text) for text in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue
        waiting += [
            normalised(each.name)
            for each in requirements
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return result


def import_names(distributions: Iterable[str]) -> set[str]:
    """Return the top-level import names of installed distributions."""
    selected = set(distributions)
    return {
        name
        for name, owners in metadata.packages_distributions().items()
        if selected.intersection(map(normalised, owners))
    }


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def limit(limits: Mapping[str, list[str]]) -> None:
    """Limit the imports of this process.

    Args:
        limits: `installed`: top-level names that can be found; `own`: those that kubealign itself may import;
            `absent`: modules that kubealign must not import.
    """
    installed = {*limits["installed"], *sys.stdlib_module_names, *_OWN}
    own = {*limits["own"], *sys.stdlib_module_names, *_OWN}
    find_spec, import_module = PathFinder.find_spec, builtins.__import__

    def find_installed(name: str, *arguments: Any) -> Any:
        top = name.partition(".")[0]
        is_installed = top in installed or top.startswith(("_sysconfigdata", "kubealign_"))
        return find_spec(name, *arguments) if is_installed else None

    def import_allowed(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        importer = str((globals or {}).get("__name__", ""))
        top = name.partition(".")[0]
        is_limited = importer.startswith("kubealign") and level == 0 and not top.startswith("kubealign")
        if is_limited and (top not in own or name in limits["absent"]):
            raise ModuleNotFoundError(f"{importer} imports {name}, which its environment has not", name=name)
        return import_module(name, globals, locals, fromlist, level)

    PathFinder.find_spec = find_installed  # type: ignore[method-assign,assignment]
    builtins.__import__ = import_allowed


if __name__ == "__main__":
    limit(json.loads(Path(sys.argv[1]).read_text()))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
