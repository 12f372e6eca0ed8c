"""Pod templates and their strategic merge: later templates override earlier ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from kubealign.process_settings import Role
from kubealign.roles import PREPARE, Process
from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.paths import format_path
from kubealign.spec.pods.template import PodTemplate
from kubealign.spec.sections.control_pods import ControlPods
from kubealign_operator import names
from kubealign_operator.kube_views.lenient_json import get_path, items, mapping
from kubealign_operator.kube_views.spec_search import spec_parts
from kubealign_operator.manifests.context import Platform

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


def pod_templates(
    platform: Platform, spec: AlignmentJobSpec, process: Process
) -> Iterator[Mapping[str, Any]]:
    """Yield the pod templates of a process in merge order: the platform's, its profile's, the job's, the
    role's. A profile that the platform does not have is left out: `profile_errors` yields an error.
    """
    yield mapping(platform.pod_template)
    template = _role_template(spec, process)
    yield _profile(platform, spec, process, template)
    if spec.pod_template is not None:
        document = _document(spec.pod_template)
        if process.role is Role.NATS:
            document = _without_containers(document)
        elif process.role_spec.compute is None:
            document = _without_devices(document)
        yield document
    if template is not None:
        yield _document(template)


def profile_errors(platform: Platform, spec: AlignmentJobSpec) -> Iterator[SpecError]:
    """Yield an error for each profile that the platform does not have."""
    allowed = ", ".join(sorted(platform.profiles)) or "none"
    for path, template in spec_parts(spec, PodTemplate):
        if template.profile is not None and template.profile not in platform.profiles:
            remedy = f"is no profile of this platform; it has {allowed} (jobs.profiles of the Helm chart)"
            yield SpecError(remedy, format_path(("spec", *path, "profile")), format_value(template.profile))


def uses_host_network(platform: Platform, spec: AlignmentJobSpec, process: Process) -> bool:
    """Return True if the pods of the process use the network of their node, which only a profile can say."""
    profile = _profile(platform, spec, process, _role_template(spec, process))
    return get_path(profile, "spec", "hostNetwork") is True


def container_limits(templates: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the resource limits that pod templates, in merge order, give to the container `main`."""
    limits: dict[str, Any] = {}
    for template in templates:
        for entry in items(get_path(template, "spec", "containers")):
            if entry.get("name") == names.MAIN_CONTAINER:
                limits = strategic_merge(limits, mapping(get_path(entry, "resources", "limits")))
    return limits


def role_section(spec: AlignmentJobSpec, process: Process) -> tuple[str, Any]:
    """Return the path in the document, and the section, of the spec that describes a worker's process; the
    section is None where the spec has none, or the section has no pod template.
    """
    for name, entry in (("rewards", process.reward), ("teachers", process.teacher)):
        if entry is not None:
            sections = enumerate(getattr(spec, name))
            matching = ((f"spec.{name}[{i}]", section) for i, section in sections if section.name == entry)
            return next(matching, (f"spec.{name}", None))
    section_name = process.role_spec.section
    return f"spec.{section_name}", None if section_name is None else getattr(spec, section_name)


def _role_template(spec: AlignmentJobSpec, process: Process) -> BaseModel | None:
    if not process.role_spec.is_worker:
        control = spec.control_pods or ControlPods()
        return {PREPARE: control.prepare, names.DRIVER: control.driver, names.NATS: control.bus}[process.name]
    _, section = role_section(spec, process)
    template: PodTemplate | None = None if section is None else section.pod_template
    return template


def _profile(
    platform: Platform, spec: AlignmentJobSpec, process: Process, template: BaseModel | None
) -> Mapping[str, Any]:
    """Return the profile of a process: that of its role's template, else, of a process with a model, that of
    the job's. Empty: it has none.
    """
    name: str | None = getattr(template, "profile", None)
    computes = process.role_spec.compute is not None
    if name is None and spec.pod_template is not None and computes:
        name = spec.pod_template.profile
    return {} if name is None else mapping(platform.profiles.get(name))


def _document(template: BaseModel) -> dict[str, Any]:
    return template.model_dump(mode="json", by_alias=True, exclude_none=True)


def _without_containers(template: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the containers: the bus is scheduled like the other pods, but does not run their container."""
    spec = {
        name: value for name, value in mapping(get_path(template, "spec")).items() if name != "containers"
    }
    return {**template, "spec": spec}


def _without_devices(template: Mapping[str, Any]) -> dict[str, Any]:
    """Remove extended resources, such as nvidia.com/gpu: preparation, driver and environments compute without
    devices.
    """
    spec = dict(mapping(get_path(template, "spec")))
    if "containers" in spec:
        spec["containers"] = [_container_without_devices(item) for item in items(spec["containers"])]
    return {**template, "spec": spec}


def _container_without_devices(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = {
        kind: {name: amount for name, amount in mapping(amounts).items() if "/" not in name}
        for kind, amounts in mapping(container.get("resources")).items()
    }
    return {**container, "resources": resources} if resources else dict(container)


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the patch into `base` without changing either.

    A null removes the field. Objects are merged field by field; the lists in `_MERGE_KEYS` by key; the
    lists in `_APPENDED_LISTS` are concatenated; any other value replaces the old one.
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


def _merge_by_key(key: str, base: Sequence[Any], patch: Sequence[Any]) -> list[Any]:
    result = list(base)
    for item in patch:
        position = next(
            (index for index, entry in enumerate(result) if _has_same_key(key, entry, item)), None
        )
        if position is None:
            result.append(strategic_merge({}, item) if isinstance(item, Mapping) else item)
        else:
            result[position] = strategic_merge(result[position], item)
    return result


def _has_same_key(key: str, entry: Any, item: Any) -> bool:
    are_objects = isinstance(entry, Mapping) and isinstance(item, Mapping)
    return are_objects and key in item and entry.get(key) == item[key]


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
