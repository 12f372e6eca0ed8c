"""The pod of a process: containers, environment, probes, resources and security contexts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubealign import pod_contract as container
from kubealign.pod_contract import (
    HEALTH_PORT,
    NATS_PORT,
    PodCompanion,
    PodRedis,
    PodSettings,
)
from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.kube_views.kueue_view import PodPlacement
from kubealign_operator.kube_views.lenient_json import get_path, items, mapping
from kubealign_operator.manifests.context import Platform, RenderContext
from kubealign_operator.manifests.egress import offline_environment
from kubealign_operator.manifests.metadata import document_label, object_labels, object_metadata
from kubealign_operator.manifests.pod_layout import pod_size_label
from kubealign_operator.manifests.pod_placement import apply_placements, without_kueue
from kubealign_operator.manifests.pod_templates import pod_templates, strategic_merge
from kubealign_operator.manifests.volume_claims import mount_path, run_directory
from kubealign_operator.manifests.volumes import (
    Mount,
    bus_mounts,
    common_mounts,
    fit_shared_memory,
    role_mounts,
)

#: Requests of each process of a role.
_ROLE_MILLICORES, _ROLE_GIBIBYTES = 500, 2
_NATS_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}
_BUILT_IN_RESOURCES = {
    Role.NATS: _NATS_RESOURCES,
    Role.DRIVER: {"requests": {"cpu": "250m", "memory": "1Gi"}},
}
#: Long enough to load a large model from a slow volume.
START_SECONDS = 1800
_START_PERIOD = 2
#: A step may hold the interpreter for long, so one late answer does not count as a hang.
_LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12}
_READINESS = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}
#: Margin, so that a process reaches its own shutdown deadline before the kubelet kills it.
_EXTRA_GRACE_SECONDS = 5


def build_pod(
    context: RenderContext,
    process: Process,
    attempt: int,
    placements: Sequence[PodPlacement] = (),
) -> dict[str, Any]:
    """Build the complete manifest of the pod of one process of a job and its companions.

    The job's pod templates are merged over the built-in spec, the general one first. Names and labels by
    which the operator finds its pods come last, so that no template changes them.

    Args:
        attempt: Number of restarts of the process and those that restart with it, such as the ranks of a
            trainer.
        placements: Scheduling fields that Kueue's admission adds.
    """
    templates = list(pod_templates(context.platform, context.job.spec, process))
    job_metadata = context.job.metadata
    merged: dict[str, Any] = {
        "metadata": {
            "labels": without_kueue(job_metadata.labels),
        },
        "spec": _pod_spec(context, process),
    }
    for template in templates:
        merged = strategic_merge(merged, {name: mapping(template.get(name)) for name in ("metadata", "spec")})
    _apply_resource_limits(merged["spec"], templates)
    if process.name in context.host_ports:
        # Otherwise the names of the job's pods would be unknown.
        merged["spec"].setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    metadata = object_metadata(context, names.pod(context.name, process.name, attempt))
    metadata["labels"] = {
        **mapping(get_path(merged, "metadata", "labels")),
        **object_labels(context.name, context.uid),
        names.GROUP_LABEL: process.group,
        names.PROCESS_LABEL: process.name,
        names.ROLE_LABEL: str(process.role),
        names.CREDENTIALS_LABEL: str(context.credentials_generation),
        names.ATTEMPT_LABEL: str(attempt),
        **document_label(context.document_generation),
        **pod_size_label(process),
    }
    if process.elastic and process.world_size > 1:
        metadata["labels"][names.WORKER_RANK_LABEL] = str(process.rank)
    annotations = dict(mapping(get_path(merged, "metadata", "annotations")))
    if annotations:
        metadata["annotations"] = annotations
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": merged["spec"]}
    apply_placements(pod, placements)
    return pod


def _pod_spec(context: RenderContext, process: Process) -> dict[str, Any]:
    mounts = common_mounts(context, process.role)
    if process.role is Role.NATS:
        mounts += bus_mounts()
    else:
        mounts += role_mounts(context, process)
    grace_seconds = context.job.spec.lifecycle.grace_period_seconds
    return {
        # The same for every attempt. A predecessor that a finalizer keeps has ended: neither Endpoints nor
        # EndpointSlices list it, although the Service publishes pods that are not ready.
        "hostname": process.name,
        "subdomain": names.peers(context.name),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace_seconds) + _EXTRA_GRACE_SECONDS,
        "securityContext": pod_security(context.platform),
        "containers": [_container(context, process, mounts)],
        "volumes": [mount.volume for mount in mounts],
    }


def _container(context: RenderContext, process: Process, mounts: Sequence[Mount]) -> dict[str, Any]:
    platform = _process_platform(context.platform, process)
    if process.role is Role.NATS:
        command = [platform.python, "-m", container.NATS_MODULE]
    else:
        command = [platform.python, "-m", container.ROLE_MODULE, process.module]
    ports = _ports(context, process)
    result: dict[str, Any] = {
        "name": names.MAIN_CONTAINER,
        "image": platform.image,
        "imagePullPolicy": platform.image_pull_policy,
        "command": command,
        "env": _environment(context, process),
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "resources": default_resources(platform, process),
        "securityContext": container_security(),
        "terminationMessagePath": container.TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount.volume_mount for mount in mounts],
        **probes(platform, process, context.ports_of(process.name).health),
        "lifecycle": _drain_hook(context, process),
    }
    return {name: value for name, value in result.items() if value not in ([], {})}


def _process_platform(platform: Platform, process: Process) -> Platform:
    """Return the platform with the image and the interpreter of the process."""
    if process.role is Role.NATS and platform.bus_image:
        return replace(platform, image=platform.bus_image, python="python")
    return platform


def _environment(context: RenderContext, process: Process) -> list[dict[str, Any]]:
    # The image has no entry for this user id; libraries need a user name and a writable home.
    variables: list[dict[str, Any]] = [
        {"name": "HOME", "value": container.SCRATCH_FOLDER},
        {"name": "USER", "value": names.KUBEALIGN},
    ]
    if process.role is Role.NATS:
        return variables
    settings = process_settings(context, process).model_dump_json(exclude_defaults=True)
    cpus = {"containerName": names.MAIN_CONTAINER, "resource": "limits.cpu", "divisor": "1"}
    return [
        *variables,
        *offline_environment(context.job, process),
        *_tracing_environment(context.platform),
        {"name": container.ENV_SETTINGS, "value": settings},
        {"name": container.ENV_CPUS, "valueFrom": {"resourceFieldRef": cpus}},
    ]


def _tracing_environment(platform: Platform) -> list[dict[str, Any]]:
    """Return the variables with which the processes send traces; none without an endpoint."""
    if not platform.otlp_endpoint:
        return []
    return [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": platform.otlp_endpoint},
        {"name": "OTEL_EXPORTER_OTLP_PROTOCOL", "value": "http/protobuf"},
    ]


def _drain_hook(context: RenderContext, process: Process) -> dict[str, Any]:
    """Return the hook that keeps an evicted trainer or critic running while the driver saves with it."""
    if not process.role_spec.trains:
        return {}
    seconds = context.job.spec.lifecycle.grace_period_seconds
    driver = names.host(context.name, context.namespace, names.DRIVER)
    port = context.ports_of(names.DRIVER).health
    command = [context.platform.python, "-m", container.DRAIN_MODULE, driver, str(port), f"{seconds:g}"]
    return {"preStop": {"exec": {"command": command}}}


def process_settings(context: RenderContext, process: Process) -> PodSettings:
    """Return the settings of one process, without secrets and without what is the same in every pod."""

    def host(name: str) -> str:
        return names.host(context.name, context.namespace, name)

    platform, parent = context.platform, context.checkpoint_source
    return PodSettings(
        name=process.name,
        role=process.role,
        host=host(process.name),
        rank=process.rank,
        world_size=process.world_size,
        reward=process.reward,
        teacher=process.teacher,
        run_dir=mount_path(*run_directory(context.job, context.uid)),
        results={entry.name: mount_path(entry.claim_name, entry.path) for entry in context.dependencies},
        parent_run=None if parent is None else mount_path(parent.claim_name, parent.path),
        serves=process.serves,
        one_shot=process.one_shot,
        peers={
            group: f"{host(f'{group}-0')}:{context.ports_of(f'{group}-0').grpc}" for group in process.calls
        },
        rendezvous=f"{host(process.leader)}:{context.ports_of(process.leader).rendezvous}"
        if process.world_size > 1
        else None,
        ports=context.ports_of(process.name),
        nats_host=host(names.NATS),
        redis=PodRedis(
            host=platform.redis_host,
            port=platform.redis_port,
            user=names.redis_user(context.uid, platform.cluster_id),
            prefix=names.redis_prefix(context.namespace, context.name, platform.cluster_id),
            tls=platform.redis_tls,
        ),
        companions=tuple(
            PodCompanion(name=each.name, rank=each.rank, serves=each.serves) for each in process.companions
        ),
    )


def _ports(context: RenderContext, process: Process) -> Mapping[str, int]:
    if process.role is Role.NATS:
        return {"nats": container.NATS_PORT}
    if process.one_shot:
        return {}
    first, rollout = context.ports_of(process.name), context.job.spec.effective_rollout
    ports = {"health": first.health}
    for index, each in enumerate(process.pod_processes):
        own, suffix = first.of_process(index), f"-{index}" if index else ""
        ports |= {f"grpc{suffix}": own.grpc} if each.serves else {}
        ports[f"metrics{suffix}"] = own.metrics
    agents = None if rollout is None else rollout.external_agents
    if agents is not None and process.role is Role.ROLLOUT and process.serves:
        ports["agents"] = agents.pod_port
    return ports


def pod_security(platform: Platform) -> dict[str, Any]:
    """Return the securityContext of a pod."""
    user, group = platform.run_as_user, platform.fs_group
    return {
        "runAsNonRoot": True,
        **({} if user is None else {"runAsUser": user, "runAsGroup": user}),
        **({} if group is None else {"fsGroup": group}),
        # Avoids a walk over volumes with millions of files at every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return the securityContext of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def probes(platform: Platform, process: Process, health_port: int = HEALTH_PORT) -> dict[str, Any]:
    """Return the probes of the process's container; none for a process that runs to completion."""
    if process.one_shot:
        return {}
    readiness, liveness = _http("/readyz", health_port), _http("/livez", health_port)
    if process.role is Role.NATS:
        readiness = {"tcpSocket": {"port": NATS_PORT}}
        # The kernel accepts connections for a server that hangs.
        module, port = container.NATS_PROBE_MODULE, str(container.NATS_MONITORING_PORT)
        liveness = {"exec": {"command": [platform.python, "-m", module, port]}}
    return {
        # The other probes start after the first success, so that loading a model does not count as a hang.
        "startupProbe": {
            **readiness,
            "periodSeconds": _START_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": START_SECONDS // _START_PERIOD,
        },
        "readinessProbe": {**readiness, **_READINESS},
        "livenessProbe": {**liveness, **_LIVENESS},
    }


def _http(path: str, port: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port}}


def default_resources(platform: Platform, process: Process) -> dict[str, Any]:
    """Return requests and limits of a process's container before any template is applied.

    The preparation, which has the driver's role, has the driver's where it has none of its own.
    """
    configured = platform.default_resources
    role, count = process.role, len(process.pod_processes)
    requests = {"cpu": f"{count * _ROLE_MILLICORES}m", "memory": f"{count * _ROLE_GIBIBYTES}Gi"}
    resources: Mapping[str, Any] = configured.get(
        process.group, configured.get(role, _BUILT_IN_RESOURCES.get(role, {"requests": requests}))
    )
    return {
        kind: dict(mapping(resources.get(kind))) for kind in ("requests", "limits") if resources.get(kind)
    }


def drop_requests_above_limits(container: dict[str, Any], chosen: Mapping[str, Any]) -> None:
    """Drop the default requests for which a template sets a limit.

    The default might exceed that limit, which the API server rejects.

    Args:
        container: The container, changed in place.
        chosen: Resources that the templates set.
    """
    resources, explicit = mapping(container.get("resources")), mapping(chosen.get("requests"))
    limits = mapping(chosen.get("limits"))
    requests = {
        name: amount
        for name, amount in mapping(resources.get("requests")).items()
        if name in explicit or name not in limits
    }
    container["resources"] = {**resources, "requests": requests}


def _apply_resource_limits(spec: dict[str, Any], patches: Sequence[Mapping[str, Any]]) -> None:
    overrides: dict[str, Any] = {}
    for patch in patches:
        for entry in items(get_path(patch, "spec", "containers")):
            if entry.get("name") == names.MAIN_CONTAINER:
                overrides = strategic_merge(overrides, mapping(entry.get("resources")))
    for entry in items(spec.get("containers")):
        if isinstance(entry, dict) and entry.get("name") == names.MAIN_CONTAINER:
            drop_requests_above_limits(entry, overrides)
    fit_shared_memory(spec)
