"""Operator as a child process of the test."""

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.free_address import free_port

from .daemon import Daemon

_READY_SECONDS = 60.0
_ANSWER_SECONDS = 5.0
_STOP_SECONDS = 20.0


class OperatorProcess:
    """A context manager that runs `python -m kubealign_operator` with a new configuration file.

    The lease is in `namespace`. `changes` replace top-level fields of the configuration."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        namespace: str,
        name: str = "operator",
        **changes: Any,
    ) -> None:
        self.metrics_port, self.health_port = free_port(), free_port()
        self._file = folder / f"{name}.yaml"
        config = {
            "kubeconfig": str(kubeconfig),
            "namespaces": [namespace],
            "platform": {"image": "none", "redisHost": "redis.none"},
            "metricsAddress": f"127.0.0.1:{self.metrics_port}",
            "healthAddress": f"127.0.0.1:{self.health_port}",
            "leaderElection": {
                "namespace": namespace,
                "leaseSeconds": 9,
                "renewDeadlineSeconds": 5,
                "retrySeconds": 1,
            },
            "requestSeconds": 5,
            **changes,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(config))
        command: Sequence[str | Path] = [sys.executable, "-m", "kubealign_operator", "--config", self._file]
        self.daemon = Daemon(name, command, folder / f"{name}.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.daemon.stop(_STOP_SECONDS)

    def start(self) -> None:
        """Start the operator and wait until it is ready, as a leader or as a standby."""
        self.daemon.start()
        self.daemon.wait_until(self.ready, "readiness", _READY_SECONDS)

    def ready(self) -> bool:
        return self._get(self.health_port, "/readyz") is not None

    def pause(self) -> None:
        """Stop the process with SIGSTOP, like a machine that goes to sleep."""
        os.kill(self.daemon.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Continue the process after `pause`."""
        os.kill(self.daemon.pid, signal.SIGCONT)

    @property
    def leads(self) -> bool:
        return self.metric("kubealign_operator_leader") == 1.0

    def page(self) -> str:
        """Return the metrics page; empty while nothing answers."""
        return self._get(self.metrics_port, "/metrics") or ""

    def metric(self, sample: str, **labels: str) -> float:
        """Return the sum of the samples with this name and at least these labels."""
        return sum(
            measurement.value
            for family in text_string_to_metric_families(self.page())
            for measurement in family.samples
            if measurement.name == sample and labels.items() <= measurement.labels.items()
        )

    def logged(self) -> list[dict[str, Any]]:
        """Return the JSON lines of the log."""
        lines = self.daemon.log.read_text().splitlines() if self.daemon.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def _get(self, port: int, path: str) -> str | None:
        """Return the body of a GET; None without an answer of status 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_ANSWER_SECONDS) as answer:
                text: str = answer.read().decode()
                return text
        except (urllib.error.URLError, OSError):
            return None
