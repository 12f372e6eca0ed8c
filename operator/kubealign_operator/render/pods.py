"""The pod of a process."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kubealign import pod as container
from kubealign.process import Role
from kubealign.roles import Process
from kubealign_operator.render import names, queueing
from kubealign_operator.render.metadata import object_labels, object_metadata
from kubealign_operator.render.patch import merged
from kubealign_operator.render.probes import probes
from kubealign_operator.render.reading import inside, items, mapping
from kubealign_operator.render.resources import default_resources, settle
from kubealign_operator.render.scene import Scene
from kubealign_operator.render.security import container_security, pod_security
from kubealign_operator.render.settings import settings_of
from kubealign_operator.render.templates import templates
from kubealign_operator.render.volumes import Mount, common, fit_shared_memory, of_bus, of_role

#: Margin, so that a process reaches its own shutdown deadline before the kubelet kills it.
_BEYOND_GRACE_SECONDS = 5


def pod(
    scene: Scene,
    process: Process,
    processes: Sequence[Process],
    attempt: int,
) -> dict[str, Any]:
    """Build the complete manifest of a pod.

    Args:
        processes: All processes of the job.
        attempt: Number of restarts of the process's unit.
    """
    spec = _spec(scene, process)
    patches = list(templates(scene, process))
    job = scene.job.metadata
    base: dict[str, Any] = {
        "metadata": {"labels": dict(job.labels), "annotations": queueing.passed_on(job.annotations)},
        "spec": spec,
    }
    result = base
    for patch in patches:
        result = merged(result, {name: mapping(patch.get(name)) for name in ("metadata", "spec")})
    _settle(result["spec"], patches)
    group_labels, group_annotations = queueing.group_of(scene, process, processes)
    metadata = object_metadata(scene, names.pod(scene.name, process.name))
    metadata["labels"] = {
        **mapping(inside(result, "metadata", "labels")),
        **group_labels,
        **object_labels(scene.name, scene.uid),
        names.GROUP_LABEL: process.group,
        names.PROCESS_LABEL: process.name,
        names.ROLE_LABEL: str(process.role),
        names.ATTEMPT_LABEL: str(attempt),
    }
    if process.elastic and process.world_size > 1:
        metadata["labels"][names.WORKER_RANK_LABEL] = str(process.rank)
    annotations = {**mapping(inside(result, "metadata", "annotations")), **group_annotations}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": result["spec"]}


def _spec(context: Scene, process: Process) -> dict[str, Any]:
    mounts = common(context, process.role)
    if process.role is Role.NATS:
        mounts += of_bus()
    else:
        mounts += of_role(context, process)
    grace_seconds = context.job.spec.lifecycle.grace_period_seconds
    return {
        "hostname": process.name,
        "subdomain": names.peers(context.name),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace_seconds) + _BEYOND_GRACE_SECONDS,
        "securityContext": pod_security(context.platform),
        "containers": [_container(context, process, mounts)],
        "volumes": [mount.volume for mount in mounts],
    }


def _container(context: Scene, process: Process, mounts: Sequence[Mount]) -> dict[str, Any]:
    platform = context.platform
    if process.role is Role.NATS:
        command = [platform.python, "-m", container.NATS_MODULE]
    else:
        command = [platform.python, "-m", container.ROLE_MODULE, process.module]
    result: dict[str, Any] = {
        "name": names.MAIN,
        "image": platform.image,
        "imagePullPolicy": platform.image_pull_policy,
        "command": command,
        "env": _environment(context, process),
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(process).items()],
        "resources": default_resources(platform, process.role),
        "securityContext": container_security(),
        "terminationMessagePath": container.TERMINATION,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount.volume_mount for mount in mounts],
        **probes(process),
    }
    return {name: value for name, value in result.items() if value not in ([], {})}


def _environment(context: Scene, process: Process) -> list[dict[str, Any]]:
    # The image has no entry for this user id; libraries need a user name and a writable home.
    variables: list[dict[str, Any]] = [
        {"name": "HOME", "value": container.SCRATCH},
        {"name": "USER", "value": names.KUBEALIGN},
    ]
    if process.role is Role.NATS:
        return variables
    settings = settings_of(context, process).model_dump_json(exclude_defaults=True)
    cpus = {"containerName": names.MAIN, "resource": "limits.cpu", "divisor": "1"}
    return [
        *variables,
        {"name": container.ENV_SETTINGS, "value": settings},
        {"name": container.ENV_CPUS, "valueFrom": {"resourceFieldRef": cpus}},
    ]


def _ports(process: Process) -> Mapping[str, int]:
    if process.role is Role.NATS:
        return {"nats": container.NATS_PORT}
    if process.one_shot:
        return {}
    ports = {"metrics": container.METRICS_PORT, "health": container.HEALTH_PORT}
    return {"grpc": container.GRPC_PORT, **ports} if process.serves else ports


def _settle(spec: dict[str, Any], patches: Sequence[Mapping[str, Any]]) -> None:
    overrides: dict[str, Any] = {}
    for patch in patches:
        for entry in items(inside(patch, "spec", "containers")):
            if entry.get("name") == names.MAIN:
                overrides = merged(overrides, mapping(entry.get("resources")))
    for entry in items(spec.get("containers")):
        if isinstance(entry, dict) and entry.get("name") == names.MAIN:
            settle(entry, overrides)
    fit_shared_memory(spec)
