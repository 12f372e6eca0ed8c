"""A cluster's site from what a person says: a kubeconfig, a context, a namespace, a dashboard."""

from pathlib import Path

from kubealign.client.cluster_figures import figures
from kubealign.client.cluster_site import ClusterSite
from kubealign.client.kubernetes_api import connect


async def open_cluster(
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    dashboard: str | None = None,
    token: str | None = None,
) -> ClusterSite:
    """To be closed. Everything may be left out: then it is as with kubectl, and the dashboard is found
    through the API server. `token`: for the dashboard, where the kubeconfig has none.

    Raises Unavailable where there is no cluster to talk to, NotPossible for a kubeconfig that is wrong."""
    api = await connect(Path(kubeconfig) if kubeconfig is not None else None, context)
    return ClusterSite(api, figures(api, dashboard, token), namespace or api.namespace)
