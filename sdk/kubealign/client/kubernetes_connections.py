"""The connections to one API server, with the caller's own credentials and without any."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

#: Of a Configuration: where the server is and how it is known, but nothing of who asks.
_OF_THE_SERVER = (
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
    """What is shared by all that talk to one API server."""

    def __init__(self, configuration: "Configuration") -> None:
        self._configuration = configuration
        self._own: ApiClient | None = None
        self._anonymous: ApiClient | None = None

    @property
    def server(self) -> str:
        return str(self._configuration.host)

    @property
    def configuration(self) -> "Configuration":
        return self._configuration

    def own(self) -> "ApiClient":
        """With the credentials of the kubeconfig or the pod."""
        from kubernetes.aio.client import ApiClient

        if self._own is None:
            self._own = ApiClient(self._configuration)
        return self._own

    def anonymous(self) -> "ApiClient":
        """Without any: to be used with a token of somebody else. A client certificate would go before it."""
        from kubernetes.aio.client import ApiClient, Configuration

        if self._configuration.cert_file is None:
            return self.own()
        if self._anonymous is None:
            bare = Configuration()
            for name in _OF_THE_SERVER:
                setattr(bare, name, getattr(self._configuration, name))
            bare.connection_pool_maxsize = self._configuration.connection_pool_maxsize
            self._anonymous = ApiClient(bare)
        return self._anonymous

    async def close(self) -> None:
        for client in (self._own, self._anonymous):
            if client is not None:
                await client.close()  # type: ignore[no-untyped-call]
