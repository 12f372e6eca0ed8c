"""Factory of the algorithm that a job names: a built-in one or a plugin."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Algorithm, load_algorithm
from kubealign_services.runtime.plugins import ALGORITHMS, PluginError, instantiate, load_entry_point


def make_algorithm(chosen: spec.Algorithm) -> Algorithm:
    """Construct the algorithm of the spec's entry.

    Raises PluginError for a plugin that is not installed or rejects its parameters; LookupError for a
    built-in algorithm without its entry point.
    """
    entry = chosen.value
    if entry.plugin is None:
        return load_algorithm(chosen.member)(entry)
    path = f"spec.algorithm.{type(chosen).model_fields[chosen.member].alias or chosen.member}"
    if entry.plugin in spec.Algorithm.model_fields:
        raise PluginError(
            f"{path}.name: {entry.plugin} is a built-in algorithm: set spec.algorithm.{entry.plugin}"
        )
    algorithm = load_entry_point(ALGORITHMS, entry.plugin, f"{path}.name")
    instance: Algorithm = instantiate(lambda: algorithm(entry), f"{path}.parameters")
    return instance
