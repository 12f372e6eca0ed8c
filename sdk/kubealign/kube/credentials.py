"""Cluster credentials: a kubeconfig as read by kubectl, or the service account of the pod."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubealign.errors import NotPossible, Unavailable

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

_POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_SERVICE_HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
_DEFAULT_NAMESPACE = "default"
_LOGIN_TIMEOUT_SECONDS = 60.0
#: Exceptions of the library for YAML that is not a kubeconfig.
_MALFORMED_KUBECONFIG_ERRORS = (AttributeError, KeyError, TypeError)


@dataclass(frozen=True)
class ClusterLogin:
    """Credentials of a cluster.

    `configuration` holds the server and the credentials; `namespace` is that of the context or the pod.
    """

    configuration: "Configuration"
    namespace: str


async def log_in(kubeconfig: Path | None, context: str | None) -> ClusterLogin:
    """Load the credentials of a cluster.

    Raises:
        Unavailable: No cluster was found.
        NotPossible: The kubeconfig is invalid.
    """
    import yaml
    from kubernetes.aio.config import ConfigException

    paths = _find_kubeconfig(kubeconfig)
    try:
        if paths is not None:
            return await asyncio.wait_for(_log_in_with_kubeconfig(paths, context), _LOGIN_TIMEOUT_SECONDS)
        if os.environ.get(_SERVICE_HOST_VARIABLE) and context is None:
            return _log_in_with_service_account()
    except TimeoutError as error:
        plugin = f"the credentials plugin of {paths}"
        raise Unavailable(
            f"waited {_LOGIN_TIMEOUT_SECONDS:g} s for {plugin}: run it by hand to see why"
        ) from error
    except (ConfigException, yaml.YAMLError, OSError, ValueError, *_MALFORMED_KUBECONFIG_ERRORS) as error:
        raise NotPossible(
            f"no connection to Kubernetes with {paths or 'the service account'}: {error}"
        ) from error
    raise Unavailable(
        "no cluster was found: no kubeconfig was named, KUBECONFIG names no file, there is "
        "no ~/.kube/config, and this is not a pod. Name a kubeconfig, or run on this machine with "
        "AlignmentClient.local()"
    )


def _find_kubeconfig(requested: Path | None) -> str | None:
    """Return the path of the kubeconfig in kubectl's order; None if there is none.

    The order is: the named file, the files of KUBECONFIG, the user's ~/.kube/config.
    """
    if requested is not None:
        path = requested.expanduser()
        if not path.is_file():
            raise Unavailable(
                f"there is no kubeconfig {path}: name another, or omit it to use the default one"
            )
        return str(path)
    paths = os.environ.get("KUBECONFIG", "")
    if any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        return paths
    default_path = Path.home() / ".kube" / "config"
    return str(default_path) if not paths and default_path.is_file() else None


async def _log_in_with_kubeconfig(paths: str, context: str | None) -> ClusterLogin:
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    contexts, current = config.list_kube_config_contexts(paths)  # type: ignore[no-untyped-call]
    context_settings = {entry["name"]: entry.get("context") or {} for entry in contexts}
    if context is not None and context not in context_settings:
        names = ", ".join(sorted(context_settings)) or "none"
        raise NotPossible(f"{paths} has no context {context}: it has {names}")
    configuration = Configuration()
    loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
        paths, context=context, client_configuration=configuration
    )
    if hasattr(loader, "exec_plugin_expiry"):
        _renew_on_expiry(configuration, loader)
    settings = context_settings[context or current["name"]]
    return ClusterLogin(configuration, str(settings.get("namespace") or _DEFAULT_NAMESPACE))


def _renew_on_expiry(configuration: "Configuration", loader: Any) -> None:
    """Rerun the credentials plugin when its credentials expire: a job outlives a token."""
    lock = asyncio.Lock()

    async def renew(expired: "Configuration") -> None:
        async with lock:
            await loader.load_from_exec_plugin()
            expired.api_key["BearerToken"] = loader.token

    configuration.refresh_api_key_hook = renew  # type: ignore[assignment]


def _log_in_with_service_account() -> ClusterLogin:
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    configuration = Configuration()
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    try:
        namespace = _POD_NAMESPACE_FILE.read_text().strip()
    except OSError:
        namespace = _DEFAULT_NAMESPACE
    return ClusterLogin(configuration, namespace)
