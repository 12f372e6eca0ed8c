"""A strategic merge of pod templates: later ones are laid over earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Lists whose entries are objects known by one field.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
#: Lists that add up.
_ADDED = ("tolerations", "topologySpreadConstraints")


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the patch laid over it; neither is changed. A null removes the field. Objects are merged
    field by field, the lists above by key or added; any other value replaces."""
    result = dict(base)
    for name, value in patch.items():
        held = base.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = merged(held if isinstance(held, Mapping) else {}, value)
        elif isinstance(value, list | tuple) and name in _KEYS:
            result[name] = _by_key(_KEYS[name], _list(held), value)
        elif isinstance(value, list | tuple) and name in _ADDED:
            result[name] = [*_list(held), *(item for item in value if item not in _list(held))]
        else:
            result[name] = value
    return result


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _by_key(key: str, base: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    result = list(base)
    for item in patch:
        place = next((index for index, held in enumerate(result) if _same(key, held, item)), None)
        if place is None:
            result.append(merged({}, item) if isinstance(item, Mapping) else item)
        else:
            result[place] = merged(result[place], item)
    return result


def _same(key: str, held: Any, item: Any) -> bool:
    both = isinstance(held, Mapping) and isinstance(item, Mapping)
    return both and key in item and held.get(key) == item[key]
