"""What the pods may do: the restricted Pod Security Standard, with a root file system that is read only."""

from typing import Any

from kubealign_operator.render.platform import Platform


def pod_security(platform: Platform) -> dict[str, Any]:
    """securityContext of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": platform.run_as_user,
        "runAsGroup": platform.run_as_user,
        "fsGroup": platform.fs_group,
        # A volume with millions of files is not walked at every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """securityContext of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
