"""Connection to the API server and the identity of this replica."""

import os
import socket
import uuid
from pathlib import Path

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

from kubealign_operator.controller.config import ConfigError, OperatorConfig

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MAX_CONNECTIONS = 64


async def connect(config: OperatorConfig) -> ApiClient:
    """Connect to the API server. The caller closes the client.

    Raises:
        ConfigError: No usable credentials.
    """
    settings = Configuration()
    try:
        if config.kubeconfig is not None:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                str(config.kubeconfig), client_configuration=settings
            )
        else:
            kube_config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except (kube_config.ConfigException, OSError) as error:
        source = config.kubeconfig or "the pod's service account"
        raise ConfigError(f"no connection to Kubernetes with {source}: {error}") from error
    settings.connection_pool_maxsize = _MAX_CONNECTIONS
    # Otherwise each call looks for a netrc file in a thread.
    settings.client_session_kwargs = {"trust_env": False}
    client = ApiClient(settings)
    client.user_agent = "kubealign-operator"
    return client


def own_namespace(config: OperatorConfig) -> str:
    """Return the namespace of the lease.

    Raises:
        ConfigError: It is neither configured nor readable.
    """
    if config.leader_election is not None and config.leader_election.namespace is not None:
        return config.leader_election.namespace
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"leaderElection.namespace must be set outside a pod: {_OWN_NAMESPACE} cannot be read"
        ) from error


def replica_identity() -> str:
    """Return a name of this process among the replicas; it changes with a restart."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
