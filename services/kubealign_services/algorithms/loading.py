"""The algorithm that a job names: one of kubealign's own, or another package's."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Algorithm, load_algorithm
from kubealign_services.plugins import ALGORITHMS, PluginError, imported, made


def make_algorithm(chosen: spec.Algorithm) -> Algorithm:
    """The algorithm of the spec's entry, made from it. Raises PluginError for another package's that is not
    installed, or refuses its parameters; LookupError for one of ours without its entry point."""
    entry = chosen.value
    if entry.plugin is None:
        return load_algorithm(chosen.member)(entry)
    place = f"spec.algorithm.{type(chosen).model_fields[chosen.member].alias or chosen.member}"
    if entry.plugin in spec.Algorithm.model_fields:
        raise PluginError(
            f"{place}.name: {entry.plugin} is one of kubealign's own: set spec.algorithm.{entry.plugin}"
        )
    algorithm = imported(ALGORITHMS, entry.plugin, f"{place}.name")
    ready: Algorithm = made(lambda: algorithm(entry), f"{place}.parameters")
    return ready
