"""Strategic merge of pod templates: later templates override earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Lists of objects -> the field that identifies an entry.
_MERGE_KEYS = {
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
_APPENDED_LISTS = ("tolerations", "topologySpreadConstraints")


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
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
            result[name] = strategic_merge(current if isinstance(current, Mapping) else {}, value)
        elif isinstance(value, list | tuple) and name in _MERGE_KEYS:
            result[name] = _merge_by_key(_MERGE_KEYS[name], _as_list(current), value)
        elif isinstance(value, list | tuple) and name in _APPENDED_LISTS:
            result[name] = [*_as_list(current), *(item for item in value if item not in _as_list(current))]
        else:
            result[name] = value
    return result


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _merge_by_key(key: str, base: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    result = list(base)
    for item in patch:
        position = next((index for index, entry in enumerate(result) if _has_same_key(key, entry, item)), None)
        if position is None:
            result.append(strategic_merge({}, item) if isinstance(item, Mapping) else item)
        else:
            result[position] = strategic_merge(result[position], item)
    return result


def _has_same_key(key: str, entry: Any, item: Any) -> bool:
    are_objects = isinstance(entry, Mapping) and isinstance(item, Mapping)
    return are_objects and key in item and entry.get(key) == item[key]
