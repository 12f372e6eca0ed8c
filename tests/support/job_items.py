"""Job documents in the format of the API server."""

from typing import Any


def item(
    name: str,
    namespace: str = "team",
    *,
    version: int = 1,
    uid: str = "",
    created: str = "2026-01-01T00:00:00Z",
    algorithm: str = "ppo",
    labels: dict[str, str] | None = None,
    **status: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": created,
            "labels": labels or {},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"algorithm": {algorithm: {}}},
        "status": status,
    }
