"""Security contexts of pods: the restricted Pod Security Standard with a read-only root file system."""

from typing import Any

from kubealign_operator.manifests.platform import Platform


def pod_security(platform: Platform) -> dict[str, Any]:
    """Return the securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": platform.run_as_user,
        "runAsGroup": platform.run_as_user,
        "fsGroup": platform.fs_group,
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
