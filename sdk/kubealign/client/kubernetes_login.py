"""Which cluster, and as whom: a kubeconfig as kubectl reads it, or the service account of our pod."""

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
#: What the library stumbles over in YAML that is no kubeconfig.
_NOT_ITS_SHAPE = (AttributeError, KeyError, TypeError)


@dataclass(frozen=True)
class Login:
    """`configuration`: server and credentials; `namespace`: the one that the context or the pod names."""

    configuration: "Configuration"
    namespace: str


async def log_in(kubeconfig: Path | None, context: str | None) -> Login:
    """Raises Unavailable where there is no cluster to talk to, NotPossible for a kubeconfig that is wrong."""
    import yaml
    from kubernetes.aio.config import ConfigException

    paths = _kubeconfig(kubeconfig)
    try:
        if paths is not None:
            return await asyncio.wait_for(_by_kubeconfig(paths, context), _LOGIN_SECONDS)
        if os.environ.get(_IN_A_POD) and context is None:
            return _by_service_account()
    except TimeoutError as error:
        what = f"the credentials plugin of {paths}"
        raise Unavailable(f"waited {_LOGIN_SECONDS:g} s for {what}: run it by hand to see why") from error
    except (ConfigException, yaml.YAMLError, OSError, ValueError, *_NOT_ITS_SHAPE) as error:
        raise NotPossible(
            f"no connection to Kubernetes with {paths or 'the service account'}: {error}"
        ) from error
    raise Unavailable(
        "there is no cluster to talk to: no kubeconfig was named, KUBECONFIG names no file, there is "
        "no ~/.kube/config, and this is not a pod. Name a kubeconfig, or run on this machine with "
        "AlignmentClient.local()"
    )


def _kubeconfig(named: Path | None) -> str | None:
    """As kubectl looks: the one that is named, those of KUBECONFIG, the user's. None: there is none."""
    if named is not None:
        path = named.expanduser()
        if not path.is_file():
            raise Unavailable(
                f"there is no kubeconfig {path}: name another, or leave it out for the usual one"
            )
        return str(path)
    held = os.environ.get("KUBECONFIG", "")
    if any(Path(path).expanduser().is_file() for path in held.split(os.pathsep) if path):
        return held
    usual = Path.home() / ".kube" / "config"
    return str(usual) if not held and usual.is_file() else None


async def _by_kubeconfig(paths: str, context: str | None) -> Login:
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    contexts, current = config.list_kube_config_contexts(paths)  # type: ignore[no-untyped-call]
    found = {held["name"]: held.get("context") or {} for held in contexts}
    if context is not None and context not in found:
        raise NotPossible(f"{paths} has no context {context}: it has {', '.join(sorted(found)) or 'none'}")
    configuration = Configuration()
    loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
        paths, context=context, client_configuration=configuration
    )
    if hasattr(loader, "exec_plugin_expiry"):
        _renew(configuration, loader)
    chosen = found[context or current["name"]]
    return Login(configuration, str(chosen.get("namespace") or _DEFAULT_NAMESPACE))


def _renew(configuration: "Configuration", loader: Any) -> None:
    """Have the credentials plugin asked again when what it gave expires: a job lives longer than a token."""
    one = asyncio.Lock()

    async def renewed(held: "Configuration") -> None:
        async with one:
            await loader.load_from_exec_plugin()
            held.api_key["BearerToken"] = loader.token

    configuration.refresh_api_key_hook = renewed  # type: ignore[assignment]


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
