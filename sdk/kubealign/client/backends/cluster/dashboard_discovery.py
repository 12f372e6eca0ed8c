"""Locates the dashboard that serves a cluster's metrics, samples and heartbeats."""

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from kubealign.client.backends.cluster.telemetry import (
    TOKEN_HEADER,
    DashboardTelemetry,
    HttpDashboard,
    parse_response,
)
from kubealign.client.errors import Forbidden, KubealignError, Unauthenticated, Unavailable
from kubealign.kube.api import KubernetesApi
from kubealign.kube.resources import SERVICES

DASHBOARD_NAMESPACE = "kubealign-system"
DASHBOARD_SERVICE = "kubealign-dashboard"
_URL_VARIABLE = "KUBEALIGN_DASHBOARD"
_TOKEN_VARIABLE = "KUBEALIGN_TOKEN"
_REMEDY = (
    "turn it on (helm upgrade --set dashboard.enabled=true), or name its address: "
    f"dashboard= or {_URL_VARIABLE}"
)

#: Message of the API server for a port name that the Service does not have.
_NO_PORT_MESSAGE = "no service port"

Json = dict[str, Any]


def open_telemetry(
    api: KubernetesApi, dashboard: str | None = None, token: str | None = None
) -> DashboardTelemetry:
    """Return the telemetry source of a cluster; nothing is requested before the first read.

    Args:
        dashboard: Address of the dashboard. None: the address in KUBEALIGN_DASHBOARD, else the Service
            kubealign-dashboard in kubealign-system through the API server's proxy.
        token: Token for the dashboard. None: KUBEALIGN_TOKEN, else the token for the API server.
    """
    url = dashboard or os.environ.get(_URL_VARIABLE)
    token = token or os.environ.get(_TOKEN_VARIABLE)
    return DashboardTelemetry.over_transport(
        _DashboardAtUrl(api, url, token) if url else ProxiedDashboard(api, token)
    )


async def _dashboard_token(api: KubernetesApi, token: str | None) -> str:
    bearer = token or await api.bearer_token()
    if bearer is None:
        raise Unauthenticated(
            "the dashboard requires a token, and your kubeconfig has a client certificate only: "
            f"give token= or {_TOKEN_VARIABLE}, such as what `kubectl create token ACCOUNT` prints"
        )
    return bearer


class _DashboardAtUrl:
    """Dashboard at an address, accessed with the credentials for the API server."""

    def __init__(self, api: KubernetesApi, url: str, token: str | None) -> None:
        self._api, self._url, self._token = api, url, token

    async def read(self, path: str, query: Mapping[str, str | int]) -> Json:
        # Created for each read: tokens of a credentials plugin change while a job runs.
        dashboard = HttpDashboard(self._url, await _dashboard_token(self._api, self._token))
        try:
            return await dashboard.read(path, query)
        finally:
            await dashboard.close()

    async def close(self) -> None:
        """Do nothing: each read closes its own connection."""


class ProxiedDashboard:
    """Service of the platform's dashboard, accessed through the API server's proxy."""

    def __init__(
        self,
        api: KubernetesApi,
        token: str | None = None,
        *,
        namespace: str = DASHBOARD_NAMESPACE,
        service: str = DASHBOARD_SERVICE,
    ) -> None:
        self._api, self._token = api, token
        self._service_name = f"{service} in namespace {namespace}"
        self._namespace = namespace
        # Port names of the chart, with and without TLS; the API server verifies no Service certificate.
        self._ports: tuple[str, ...] = (f"https:{service}:https", f"{service}:http")

    async def read(self, path: str, query: Mapping[str, str | int]) -> Json:
        headers = {TOKEN_HEADER: await _dashboard_token(self._api, self._token)}
        status, refusal = 0, Json()
        for port in self._ports:
            proxied = f"{SERVICES.object_path(self._namespace, port)}/proxy{path}"
            status, body = await self._api.get_raw(proxied, query, headers)
            api_status = _kubernetes_status(body)
            if api_status is None:
                self._ports = (port,)
                return parse_response(status, body, f"the dashboard {self._service_name}")
            refusal = api_status
            if _NO_PORT_MESSAGE not in str(refusal.get("message")):
                break
        raise self._access_error(status, refusal)

    def _access_error(self, status: int, kubernetes: Json) -> KubealignError:
        message = str(kubernetes.get("message") or f"HTTP {status}")
        if status == HTTPStatus.NOT_FOUND:
            return Unavailable(
                f"there is no dashboard in this cluster (Service {self._service_name}): {_REMEDY}"
            )
        if status == HTTPStatus.FORBIDDEN:
            return Forbidden(
                f"you may not reach the dashboard {self._service_name} through the API server: {message}; "
                "ask for `get` on services/proxy there, or name the dashboard's address: "
                f"dashboard= or {_URL_VARIABLE}"
            )
        return Unavailable(f"the dashboard {self._service_name} does not respond: {message}")

    async def close(self) -> None:
        """Do nothing: the connections belong to the API client."""


def _kubernetes_status(body: bytes) -> Json | None:
    """Return the Status object if the response came from the API server instead of the dashboard."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) and document.get("kind") == "Status" else None
