"""Strategic merge of pod templates: later templates override earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Lists of objects -> the field that identifies an entry.
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
#: Lists that are concatenated.
_ADDED = ("tolerations", "topologySpreadConstraints")


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the patch into `base` without changing either.

    A null removes the field. Objects are merged field by field; the lists in `_MERGE_KEYS` by key; the
    lists in
    `_APPENDED_LISTS` are concatenated; any other value replaces the old one.
    """
    result = dict(base)
    for name, value in patch.items():
        current = base.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = merged(current if isinstance(current, Mapping) else {}, value)
        elif isinstance(value, list | tuple) and name in _KEYS:
            result[name] = _by_key(_KEYS[name], _list(current), value)
        elif isinstance(value, list | tuple) and name in _ADDED:
            result[name] = [*_list(current), *(item for item in value if item not in _list(current))]
        else:
            result[name] = value
    return result


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _by_key(key: str, base: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    result = list(base)
    for item in patch:
        position = next((index for index, entry in enumerate(result) if _same(key, entry, item)), None)
        if position is None:
            result.append(merged({}, item) if isinstance(item, Mapping) else item)
        else:
            result[position] = merged(result[position], item)
    return result


def _same(key: str, entry: Any, item: Any) -> bool:
    are_objects = isinstance(entry, Mapping) and isinstance(item, Mapping)
    return are_objects and key in item and entry.get(key) == item[key]
