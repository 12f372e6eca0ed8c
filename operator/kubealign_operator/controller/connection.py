"""The connection to the API server: where it is, and as whom."""

import os
import socket
import uuid
from pathlib import Path

from kubernetes.aio import config as loading
from kubernetes.aio.client import ApiClient, Configuration

from kubealign_operator.controller.config import ConfigError, OperatorConfig

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECTIONS = 64


async def connect(config: OperatorConfig) -> ApiClient:
    """Within a running loop; to be closed. Raises ConfigError."""
    settings = Configuration()
    try:
        if config.kubeconfig is not None:
            await loading.load_kube_config(  # type: ignore[no-untyped-call]
                str(config.kubeconfig), client_configuration=settings
            )
        else:
            loading.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except (loading.ConfigException, OSError) as error:
        where = config.kubeconfig or "the pod's service account"
        raise ConfigError(f"no connection to Kubernetes with {where}: {error}") from error
    settings.connection_pool_maxsize = _CONNECTIONS
    # Else each call asks a thread to look for a netrc file.
    settings.client_session_kwargs = {"trust_env": False}
    client = ApiClient(settings)
    client.user_agent = "kubealign-operator"
    return client


def own_namespace(config: OperatorConfig) -> str:
    """Where the lease is. Raises ConfigError."""
    if config.leader_election is not None and config.leader_election.namespace is not None:
        return config.leader_election.namespace
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"leaderElection.namespace must be set outside a pod: {_OWN_NAMESPACE} cannot be read"
        ) from error


def identity() -> str:
    """Of this process among the replicas: a restarted one is another."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
