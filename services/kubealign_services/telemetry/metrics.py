"""Prometheus metrics of one process, served with mutual TLS.

Names and meaning of the step metrics: docs/metrics.md.
"""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from kubealign.process_settings import TlsFiles
from kubealign_services.runtime.rpc.server import PortInUse

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0, 3600.0)


class ProcessMetrics:
    """Prometheus metrics of a process."""

    def __init__(self, job: str, role: str, process: str) -> None:
        self.registry = CollectorRegistry()
        Info("kubealign_process", "The process that exports these metrics.", registry=self.registry).info(
            {"job": job, "role": role, "process": process}
        )
        self._rpc_seconds = Histogram(
            "kubealign_rpc_seconds",
            "Duration of answered calls in seconds.",
            ("method", "code"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        #: Labels: subject; event: published, delivered, acknowledged, returned, rejected.
        self.bus_messages = Counter(
            "kubealign_bus_messages", "Messages on the bus.", ("subject", "event"), registry=self.registry
        )
        #: Counted by the driver. Labels: subject, consumer.
        self.bus_messages_lost = Counter(
            "kubealign_bus_messages_lost",
            "Messages that the bus discarded before a consumer had received them.",
            ("subject", "consumer"),
            registry=self.registry,
        )
        #: Labels: reward; kind: error, timeout.
        self.reward_failures = Counter(
            "kubealign_reward_failures",
            "Samples on which a reward function failed.",
            ("reward", "kind"),
            registry=self.registry,
        )
        self.environment_episodes = Gauge(
            "kubealign_environment_episodes",
            "Episodes in progress in an environment worker.",
            registry=self.registry,
        )
        #: Label reason: expired, stale, no_weights.
        self.skipped_work_items = Counter(
            "kubealign_skipped_work_items",
            "Work items that a rollout worker acknowledged without samples.",
            ("reason",),
            registry=self.registry,
        )
        #: Label kind: prompt, generated.
        self.engine_tokens = Counter(
            "kubealign_engine_tokens",
            "Tokens processed by the rollout engine.",
            ("kind",),
            registry=self.registry,
        )
        self.train_step_seconds = Histogram(
            "kubealign_train_step_seconds",
            "Duration of a TrainStep in seconds.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._step_metrics = Gauge(
            "kubealign_step", "Metrics of the last step, by name.", ("name",), registry=self.registry
        )

    def observe_rpc(self, method: str, code: str, seconds: float) -> None:
        """Record one answered call."""
        self._rpc_seconds.labels(method.removeprefix("/"), code).observe(seconds)

    def set_step(self, values: Mapping[str, float]) -> None:
        """Set the metrics of the last step."""
        for name, value in values.items():
            self._step_metrics.labels(name).set(value)


class MetricsServer:
    """Serves /metrics over HTTPS, only to certificates of the job, while its context is open.

    Args:
        listen: host:port.

    Raises:
        PortInUse: The port is taken.
    """

    def __init__(self, listen: str, tls: TlsFiles, metrics: ProcessMetrics) -> None:
        host, _, port = listen.rpartition(":")
        self._listen = listen
        self._address = host.strip("[]"), int(port)
        self._tls = tls
        self._metrics = metrics
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return self._address[1] if self._running is None else self._running[0].server_port

    def __enter__(self) -> Self:
        host, port = self._address
        try:
            self._running = start_http_server(
                port,
                addr=host,
                registry=self._metrics.registry,
                certfile=str(self._tls.certificate),
                keyfile=str(self._tls.key),
                client_cafile=str(self._tls.ca),
                client_auth_required=True,
            )
        except OSError as error:
            raise PortInUse(
                f"cannot serve metrics at {self._listen}: end the process that has it, "
                f"or choose another port ({error})"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            server, thread = self._running
            self._running = None
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)
