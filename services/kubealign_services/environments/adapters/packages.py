"""Imports of the packages that the adapters need."""

import difflib
import importlib
from collections.abc import Collection
from types import ModuleType

from kubealign_services.environments.contract import EnvironmentFailed


def import_package(module: str, extra: str) -> ModuleType:
    """Import and return a module of an optional package.

    Args:
        extra: Extra of kubealign that installs the package.

    Raises:
        EnvironmentFailed: The package, or one that it needs, is not installed. Permanent.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EnvironmentFailed(
            f"needs the package {module.partition('.')[0]}, which cannot be imported ({error}): install it "
            f"where the rollout workers run, pip install 'kubealign[{extra}]'",
            permanent=True,
        ) from error


def require_name(name: str, names: Collection[str], kind: str) -> None:
    """Raise EnvironmentFailed, with the most similar names, unless a package registers this name.

    Args:
        kind: Kind of what is registered, such as task.
    """
    if name not in names:
        similar = difflib.get_close_matches(name, names, n=5, cutoff=0.3) or sorted(names)[:5]
        raise EnvironmentFailed(
            f"is none of the {len(names)} registered {kind}s; the most similar are {', '.join(similar)}",
            permanent=True,
        )
