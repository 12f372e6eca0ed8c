"""Connection to the API server, the client that the operator uses, and the identity of this replica."""

import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from kubealign.kube.api import ApiOptions, KubernetesApi, allow_writes
from kubealign.kube.connections import Connections
from kubealign.kube.errors import STATUS_ERRORS, ApiCall
from kubealign_operator.controller.config import ConfigError, OperatorConfig
from kubealign_operator.controller.metrics import OperatorMetrics

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MAX_CONNECTIONS = 64
# All paths of the operator name their namespace.
_NO_NAMESPACE = ""


async def connect(config: OperatorConfig) -> Connections:
    """Connect to the API server. The caller closes the connections.

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
    connections = Connections(settings, user_agent="kubealign-operator")
    # Loaded now, so that an unusable certificate ends the process at start-up.
    connections.authenticated()
    return connections


def operator_api(
    connections: Connections,
    metrics: OperatorMetrics,
    timeout: float,
    guard: Callable[[], None] = allow_writes,
) -> KubernetesApi:
    """Return a client that counts its requests and raises ApiStatusError and Unavailable.

    The work queue retries failed reconciles, so the client does not retry calls itself.

    Args:
        timeout: Timeout of one call in seconds.
        guard: Called before each write; raises NotLeader when this replica must not write any more.
    """

    def record_request(call: ApiCall, status: str, seconds: float) -> None:
        metrics.record_api_call(call.verb, call.resource, status, seconds)

    options = ApiOptions(
        timeout=timeout, max_attempts=1, errors=STATUS_ERRORS, guard=guard, on_request=record_request
    )
    return KubernetesApi(connections, _NO_NAMESPACE, options)


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
