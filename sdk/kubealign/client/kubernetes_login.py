"""Cluster credentials: a kubeconfig as read by kubectl, or the service account of the pod."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubealign.client.errors import NotPossible, Unavailable

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_IN_A_POD = "KUBERNETES_SERVICE_HOST"
_DEFAULT_NAMESPACE = "default"
_LOGIN_SECONDS = 60.0
#: Exceptions of the library for YAML that is not a kubeconfig.
_NOT_ITS_SHAPE = (AttributeError, KeyError, TypeError)


@dataclass(frozen=True)
class Login:
    """Credentials of a cluster.

    `configuration` holds the server and the credentials; `namespace` is that of the context or the pod.
    """

    configuration: "Configuration"
    namespace: str


async def log_in(kubeconfig: Path | None, context: str | None) -> Login:
    """Load the credentials of a cluster.

    Raises:
        Unavailable: No cluster was found.
        NotPossible: The kubeconfig is invalid.
    """
    import yaml
    from kubernetes.aio.config import ConfigException

    paths = _kubeconfig(kubeconfig)
    try:
        if paths is not None:
            return await asyncio.wait_for(_by_kubeconfig(paths, context), _LOGIN_SECONDS)
        if os.environ.get(_IN_A_POD) and context is None:
            return _by_service_account()
    except TimeoutError as error:
        plugin = f"the credentials plugin of {paths}"
        raise Unavailable(f"waited {_LOGIN_SECONDS:g} s for {plugin}: run it by hand to see why") from error
    except (ConfigException, yaml.YAMLError, OSError, ValueError, *_NOT_ITS_SHAPE) as error:
        raise NotPossible(
            f"no connection to Kubernetes with {paths or 'the service account'}: {error}"
        ) from error
    raise Unavailable(
        "no cluster was found: no kubeconfig was named, KUBECONFIG names no file, there is "
        "no ~/.kube/config, and this is not a pod. Name a kubeconfig, or run on this machine with "
        "AlignmentClient.local()"
    )


def _kubeconfig(requested: Path | None) -> str | None:
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


async def _by_kubeconfig(paths: str, context: str | None) -> Login:
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
        _renew(configuration, loader)
    settings = context_settings[context or current["name"]]
    return Login(configuration, str(settings.get("namespace") or _DEFAULT_NAMESPACE))


def _renew(configuration: "Configuration", loader: Any) -> None:
    """Rerun the credentials plugin when its credentials expire: a job outlives a token."""
    lock = asyncio.Lock()

    async def renew(expired: "Configuration") -> None:
        async with lock:
            await loader.load_from_exec_plugin()
            expired.api_key["BearerToken"] = loader.token

    configuration.refresh_api_key_hook = renew  # type: ignore[assignment]


def _by_service_account() -> Login:
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    configuration = Configuration()
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    try:
        namespace = _OWN_NAMESPACE.read_text().strip()
    except OSError:
        namespace = _DEFAULT_NAMESPACE
    return Login(configuration, namespace)
