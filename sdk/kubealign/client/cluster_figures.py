"""Where a cluster's figures come from: the platform's dashboard, found by itself where nobody names it."""

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from kubealign.client.errors import Forbidden, KubealignError, Unauthenticated, Unavailable
from kubealign.client.kubernetes_api import KubernetesApi
from kubealign.client.kubernetes_resources import SERVICES
from kubealign.client.rest_figures import TOKEN_HEADER, HttpDashboard, RestFigures, told

NAMESPACE = "kubealign-system"
SERVICE = "kubealign-dashboard"
_URL = "KUBEALIGN_DASHBOARD"
_TOKEN = "KUBEALIGN_TOKEN"
_REMEDY = f"turn it on (helm upgrade --set dashboard.enabled=true), or name its address: dashboard= or {_URL}"

#: What the API server says of a port by a name that the Service does not have.
_NO_PORT = "no service port"

Json = dict[str, Any]


def figures(api: KubernetesApi, dashboard: str | None = None, token: str | None = None) -> RestFigures:
    """Of the dashboard at this address; None: at the one that KUBEALIGN_DASHBOARD names, else the Service
    kubealign-dashboard in kubealign-system, through the API server. Nothing is asked before figures are.

    `token`: whom the dashboard is told that we are; None: KUBEALIGN_TOKEN, else as the API server is."""
    url = dashboard or os.environ.get(_URL)
    token = token or os.environ.get(_TOKEN)
    return RestFigures.of(_Named(api, url, token) if url else ProxiedDashboard(api, token))


async def _token(api: KubernetesApi, token: str | None) -> str:
    held = token or await api.token()
    if held is None:
        raise Unauthenticated(
            "the dashboard knows callers by a token, and your kubeconfig has a client certificate only: "
            f"give token= or {_TOKEN}, such as what `kubectl create token ACCOUNT` prints"
        )
    return held


class _Named:
    """A dashboard at an address, as the caller of the API server."""

    def __init__(self, api: KubernetesApi, url: str, token: str | None) -> None:
        self._api, self._url, self._token = api, url, token

    async def read(self, path: str, query: Mapping[str, str | int]) -> Json:
        # Made anew: tokens of a credentials plugin change while a job runs.
        dashboard = HttpDashboard(self._url, await _token(self._api, self._token))
        try:
            return await dashboard.read(path, query)
        finally:
            await dashboard.close()

    async def close(self) -> None:
        """There is nothing to close."""


class ProxiedDashboard:
    """The Service of the platform's dashboard, through the API server's proxy."""

    def __init__(
        self,
        api: KubernetesApi,
        token: str | None = None,
        *,
        namespace: str = NAMESPACE,
        service: str = SERVICE,
    ) -> None:
        self._api, self._token = api, token
        self._where = f"{service} in namespace {namespace}"
        self._namespace = namespace
        # As the chart names them, with and without TLS; the API server checks no certificate of a Service.
        self._ports: tuple[str, ...] = (f"https:{service}:https", f"{service}:http")

    async def read(self, path: str, query: Mapping[str, str | int]) -> Json:
        headers = {TOKEN_HEADER: await _token(self._api, self._token)}
        status, refusal = 0, Json()
        for port in self._ports:
            proxied = f"{SERVICES.named(self._namespace, port)}/proxy{path}"
            status, body = await self._api.raw(proxied, query, headers)
            kubernetes = _of_kubernetes(body)
            if kubernetes is None:
                self._ports = (port,)
                return told(status, body, f"the dashboard {self._where}")
            refusal = kubernetes
            if _NO_PORT not in str(refusal.get("message")):
                break
        raise self._refused(status, refusal)

    def _refused(self, status: int, kubernetes: Json) -> KubealignError:
        message = str(kubernetes.get("message") or f"HTTP {status}")
        if status == HTTPStatus.NOT_FOUND:
            return Unavailable(f"there is no dashboard in this cluster (Service {self._where}): {_REMEDY}")
        if status == HTTPStatus.FORBIDDEN:
            return Forbidden(
                f"you may not reach the dashboard {self._where} through the API server: {message}; ask for "
                f"`get` on services/proxy there, or name the dashboard's address: dashboard= or {_URL}"
            )
        return Unavailable(f"the dashboard {self._where} does not answer: {message}")

    async def close(self) -> None:
        """The connections are the API's."""


def _of_kubernetes(body: bytes) -> Json | None:
    """The API server's own word, where it was not the dashboard that answered."""
    try:
        held = json.loads(body)
    except ValueError:
        return None
    return held if isinstance(held, dict) and held.get("kind") == "Status" else None
