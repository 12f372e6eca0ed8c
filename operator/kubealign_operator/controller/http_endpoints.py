"""HTTP endpoints /metrics, /livez and /readyz."""

from collections.abc import Callable

from aiohttp import web

from kubealign_operator.controller.metrics import OperatorMetrics

_PROMETHEUS = "text/plain; version=0.0.4"


class AddressError(Exception):
    """A configured address cannot be listened on."""


class HttpEndpoints:
    """HTTP endpoints as an async context manager.

    /livez is answered by the event loop that does all the work, so a blocked loop fails the liveness
    probe.

    Args:
        not_ready_reason: Called at each /readyz; returns the reason for not being ready, or None.
    """

    def __init__(
        self,
        metrics: OperatorMetrics,
        metrics_address: str,
        health_address: str,
        not_ready_reason: Callable[[], str | None],
    ) -> None:
        self._metrics = metrics
        self._not_ready_reason = not_ready_reason
        self._routes = {
            metrics_address: [web.get("/metrics", self._metrics_page)],
            health_address: [web.get("/livez", self._livez), web.get("/readyz", self._readyz)],
        }
        if metrics_address == health_address:
            self._routes = {
                metrics_address: [
                    web.get("/metrics", self._metrics_page),
                    web.get("/livez", self._livez),
                    web.get("/readyz", self._readyz),
                ]
            }
        self._runners: list[web.AppRunner] = []

    async def __aenter__(self) -> "HttpEndpoints":
        """Start listening.

        Raises:
            AddressError: An address cannot be listened on.
        """
        for address, routes in self._routes.items():
            host, _, port = address.rpartition(":")
            application = web.Application()
            application.add_routes(routes)
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            self._runners.append(runner)
            try:
                await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
            except (OSError, ValueError, OverflowError) as error:
                await self.__aexit__()
                raise AddressError(f"cannot listen on {address!r}: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": _PROMETHEUS})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._not_ready_reason()
        return web.Response(text="ok\n") if reason is None else web.Response(text=f"{reason}\n", status=503)
