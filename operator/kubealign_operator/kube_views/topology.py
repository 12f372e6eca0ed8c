"""Topology Aware Scheduling of Kueue: what pods ask for, and the domains that Kueue has assigned.

https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/
"""

from collections.abc import Mapping
from typing import Any

from kubealign_operator.kube_views.lenient_json import items, labels, mapping, text

_PREFIX = "kueue.x-k8s.io/podset-"
#: Annotation of pods -> field of a pod set's topologyRequest.
_REQUESTS = {
    f"{_PREFIX}required-topology": "required",
    f"{_PREFIX}preferred-topology": "preferred",
    f"{_PREFIX}unconstrained-topology": "unconstrained",
}
#: For pods of a flavor with a topology that ask for none: Kueue finds only annotated pods.
UNCONSTRAINED = {f"{_PREFIX}unconstrained-topology": "true"}

Json = dict[str, Any]


class TopologyInvalid(ValueError):
    """The annotations of a pod are no request for a topology."""


def topology_request(annotations: Mapping[str, str]) -> Json | None:
    """Return the topologyRequest of a pod set whose pods have these annotations; None: they ask for none.

    Raises:
        TopologyInvalid: More than one is set, a level is empty, or `unconstrained` is not "true".
    """
    asked = {name: annotations[name] for name in _REQUESTS if name in annotations}
    if not asked:
        return None
    if len(asked) > 1:
        raise TopologyInvalid(f"only one of the annotations {', '.join(asked)} may be set")
    ((name, value),) = asked.items()
    if _REQUESTS[name] == "unconstrained":
        if value != "true":
            raise TopologyInvalid(f'annotation {name} is {value!r}; the only value is "true"')
        return {"unconstrained": True}
    if not value:
        raise TopologyInvalid(
            f"annotation {name} is empty: name a level of the topology, such as a node label"
        )
    return {_REQUESTS[name]: value}


def first_domain(assignment: Mapping[str, Any]) -> dict[str, str]:
    """Return the node labels of the first domain of a topologyAssignment, from JSON."""
    slices = items(assignment.get("slices"))
    levels = assignment.get("levels")
    if not slices or not isinstance(levels, list):
        return {}
    values = [_first_value(entry) for entry in items(slices[0].get("valuesPerLevel"))]
    return labels(dict(zip(levels, values, strict=False)))


def _first_value(entry: Mapping[str, Any]) -> str:
    if "universal" in entry:
        return text(entry.get("universal"))
    individual = mapping(entry.get("individual"))
    roots = individual.get("roots")
    root = text(roots[0]) if isinstance(roots, list) and roots else ""
    return text(individual.get("prefix")) + root + text(individual.get("suffix"))
