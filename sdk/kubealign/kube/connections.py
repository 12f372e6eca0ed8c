"""Connections to one API server, with the caller's own credentials and without credentials."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from kubealign import __version__

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

#: Fields of a Configuration that locate and verify the server; none of them is a credential.
_SERVER_SETTINGS = (
    "host",
    "ssl_ca_cert",
    "ca_cert_data",
    "verify_ssl",
    "disable_strict_ssl_verification",
    "tls_server_name",
    "proxy",
    "proxy_headers",
)


class Connections:
    """Connection pool shared by all clients of one API server; an async context manager."""

    def __init__(self, configuration: "Configuration", user_agent: str = f"kubealign/{__version__}") -> None:
        self.user_agent = user_agent
        self._configuration = configuration
        self._authenticated: ApiClient | None = None
        self._anonymous: ApiClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def server(self) -> str:
        """Address of the API server."""
        return str(self._configuration.host)

    @property
    def configuration(self) -> "Configuration":
        return self._configuration

    def authenticated(self) -> "ApiClient":
        """Return the client with the credentials of the kubeconfig or the pod."""
        if self._authenticated is None:
            self._authenticated = self._new_client(self._configuration)
        return self._authenticated

    def anonymous(self) -> "ApiClient":
        """Return a client without credentials, for requests with another caller's token.

        A client certificate would take precedence over that token.
        """
        from kubernetes.aio.client import Configuration

        if self._configuration.cert_file is None:
            return self.authenticated()
        if self._anonymous is None:
            configuration = Configuration()
            for name in _SERVER_SETTINGS:
                setattr(configuration, name, getattr(self._configuration, name))
            configuration.connection_pool_maxsize = self._configuration.connection_pool_maxsize
            self._anonymous = self._new_client(configuration)
        return self._anonymous

    async def close(self) -> None:
        for client in (self._authenticated, self._anonymous):
            if client is not None:
                await client.close()  # type: ignore[no-untyped-call]

    def _new_client(self, configuration: "Configuration") -> "ApiClient":
        from kubernetes.aio.client import ApiClient

        client = ApiClient(configuration)
        client.user_agent = self.user_agent
        return client
