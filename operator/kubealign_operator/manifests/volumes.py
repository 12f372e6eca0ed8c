"""Volumes of a pod and their mounts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kubealign import pod_contract as container
from kubealign.process_settings import Role
from kubealign.roles import PREPARE, Process, generation_role
from kubealign.spec.sections.rewards import ConfigMapFunction
from kubealign_operator import names
from kubealign_operator.kube_views.lenient_json import get_path, items
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.volume_claims import mount_path

#: Size for a process without a memory limit. Unwritten memory is not allocated.
_SHARED_MEMORY_SIZE = "16Gi"
_SHARED_MEMORY_VOLUME = "kubealign-shared-memory"
_RUNTIME_SIZE = "16Mi"
#: Readable by the pod's fsGroup only.
_SECRET_MODE = 0o440


@dataclass(frozen=True)
class Mount:
    """A volume with its source and its mount path."""

    name: str
    source: dict[str, Any]
    path: str
    read_only: bool = False

    @property
    def volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    @property
    def volume_mount(self) -> dict[str, Any]:
        mount: dict[str, Any] = {"name": self.name, "mountPath": self.path}
        return {**mount, "readOnly": True} if self.read_only else mount


def common_mounts(context: RenderContext, role: Role) -> list[Mount]:
    """Return the mounts of every pod: credentials and scratch space."""
    return [
        _credentials(context, role),
        Mount("kubealign-scratch", {"emptyDir": {}}, container.SCRATCH_FOLDER),
    ]


def role_mounts(context: RenderContext, process: Process) -> list[Mount]:
    """Return the mounts of a role's pod in addition to the common ones."""
    document = str(PurePosixPath(container.JOB_DOCUMENT).parent)
    config_map = names.config_map(context.name, context.document_generation)
    mounts = [
        Mount("kubealign-job", {"configMap": {"name": config_map}}, document, read_only=True),
        Mount("kubealign-runtime", _memory(_RUNTIME_SIZE), container.RUNTIME_FOLDER),
        Mount(_SHARED_MEMORY_VOLUME, _memory(_SHARED_MEMORY_SIZE), container.SHARED_MEMORY_FOLDER),
    ]
    for index, (claim, is_written) in enumerate(context.claims.items()):
        source = {"persistentVolumeClaim": {"claimName": claim}}
        mounts.append(
            Mount(f"kubealign-claim-{index}", source, str(mount_path(claim, "")), read_only=not is_written)
        )
    for index, function in enumerate(_config_maps(context, process)):
        path = str(PurePosixPath(function.path).parent)
        name = "kubealign-function" if index == 0 else f"kubealign-function-{index}"
        mounts.append(Mount(name, {"configMap": {"name": function.name}}, path, read_only=True))
    return mounts


def _config_maps(context: RenderContext, process: Process) -> list[ConfigMapFunction]:
    """Return the ConfigMaps with the functions that the process calls, each once."""
    functions: list[Any] = []
    if process.reward is not None:
        functions = [context.job.spec.scorer(process.reward).function]
    elif process.role in (generation_role([process]), Role.ENVIRONMENT) or (
        process.group == PREPARE and context.job.spec.rollout.tool_calls is not None
    ):
        # The preparation describes the functions that are called as tools.
        functions = [function for _, function in context.job.spec.rollout.functions]
    maps = [function.config_map for function in functions if function is not None]
    return list({one.name: one for one in maps if one is not None}.values())


def bus_mounts() -> list[Mount]:
    """Return the mounts of the bus. Its streams are a cache and need not outlive the pod."""
    return [
        Mount("kubealign-streams", {"emptyDir": {}}, container.NATS_DATA_FOLDER),
        Mount("kubealign-runtime", _memory(_RUNTIME_SIZE), container.RUNTIME_FOLDER),
    ]


def fit_shared_memory(pod_spec: dict[str, Any]) -> None:
    """Limit the shared memory volume to the container's memory limit, against which the volume counts."""
    limits = (
        get_path(entry, "resources", "limits", "memory")
        for entry in items(pod_spec.get("containers"))
        if entry.get("name") == names.MAIN_CONTAINER
    )
    limit = next(limits, None)
    for volume in items(pod_spec.get("volumes")):
        if limit is not None and isinstance(volume, dict) and volume.get("name") == _SHARED_MEMORY_VOLUME:
            volume.update(_memory(str(limit)))


def _memory(size: str) -> dict[str, Any]:
    return {"emptyDir": {"medium": "Memory", "sizeLimit": size}}


def _credentials(context: RenderContext, role: Role) -> Mount:
    secret = names.credentials(context.name, context.credentials_generation)
    files = {
        container.CA_FILE: container.CA_FILE,
        f"{role}.pem": container.CERTIFICATE_FILE,
        f"{role}-key.pem": container.KEY_FILE,
        container.NATS_PASSWORD_FILE: container.NATS_PASSWORD_FILE,
    }
    if role is not Role.NATS:
        files[container.REDIS_PASSWORD_FILE] = container.REDIS_PASSWORD_FILE
    sources: list[dict[str, Any]] = [{"secret": {"name": secret, "items": _items(files)}}]
    if context.platform.redis_tls and role is not Role.NATS:
        ca = _items({container.REDIS_CA_FILE: container.REDIS_CA_FILE})
        sources.append({"secret": {"name": secret, "items": ca, "optional": True}})
    source = {"projected": {"defaultMode": _SECRET_MODE, "sources": sources}}
    return Mount("kubealign-credentials", source, container.SECRETS_FOLDER, read_only=True)


def _items(files: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "path": path} for key, path in files.items()]
