"""Opens a cluster backend from user-facing settings."""

from pathlib import Path

from kubealign.client.backends.cluster.dashboard_discovery import open_telemetry
from kubealign.client.backends.cluster.backend import ClusterBackend
from kubealign.kube.api import connect


async def open_cluster(
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    dashboard: str | None = None,
    token: str | None = None,
) -> ClusterBackend:
    """Open the backend of a cluster; the caller must close it.

    Every argument is optional: the defaults are those of kubectl, and the dashboard is found through the
    API server.

    Args:
        token: Token for the dashboard, if the kubeconfig has none.

    Raises:
        Unavailable: No cluster was found.
        NotPossible: The kubeconfig is invalid.
    """
    api = await connect(Path(kubeconfig) if kubeconfig is not None else None, context)
    return ClusterBackend(api, open_telemetry(api, dashboard, token), namespace or api.namespace)
