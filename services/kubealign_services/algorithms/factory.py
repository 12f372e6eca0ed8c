"""Factory of the algorithm that a job names: one of kubealign's, or a plugin."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from kubealign.spec import algorithms as spec
from kubealign.spec.base import field_alias
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.runtime.plugins import ALGORITHMS, PluginError, instantiate, load_entry_point


def make_algorithm(chosen: spec.Algorithm) -> Algorithm:
    """Construct the algorithm of the spec's entry.

    Raises PluginError for a plugin that is not installed or rejects its parameters; LookupError for an
    algorithm that does not train.
    """
    entry = chosen.value
    if entry.plugin is None:
        return load_algorithm(chosen.member)(entry)
    path = f"spec.algorithm.{field_alias(type(chosen), chosen.member)}"
    if entry.plugin in spec.algorithm_specs():
        raise PluginError(
            f"{path}.name: {entry.plugin} is a built-in algorithm: set spec.algorithm.{entry.plugin}"
        )
    algorithm = load_entry_point(ALGORITHMS, entry.plugin, f"{path}.name")
    instance: Algorithm = instantiate(lambda: algorithm(entry), f"{path}.parameters")
    return instance


def load_algorithm(name: str) -> Callable[[Any], Algorithm]:
    """Import the implementation of one of kubealign's algorithms, which plugins cannot replace.

    Raises LookupError with the names of the algorithms.
    """
    specs = spec.algorithm_specs()
    implementation = specs[name].implementation if name in specs else None
    if implementation is None:
        known = sorted(member for member, each in specs.items() if each.implementation is not None)
        raise LookupError(f"no algorithm {name}; there are {known}")
    loaded: Callable[[Any], Algorithm] = resolve_name(implementation)
    return loaded
