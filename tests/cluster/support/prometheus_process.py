"""Prometheus as a child process of the test, with the scrape targets of the chart's ServiceMonitors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from support.free_address import free_port
from support.prometheus_programs import PrometheusPrograms

from .daemon import Daemon
from .helm import NAMESPACE, Json

_READY_SECONDS = 60.0
_ANSWER_SECONDS = 20.0
_STOP_SECONDS = 20.0


@dataclass(frozen=True)
class ScrapeTarget:
    """An endpoint of a ServiceMonitor, at the address of a child process of the test.

    `settings` replace fields of the scrape configuration, such as the files of a token and an authority."""

    name: str
    endpoint: Json
    address: str
    settings: Mapping[str, Any]

    def config(self) -> Json:
        """Return the scrape configuration that the Prometheus operator makes of the endpoint."""
        return {
            "job_name": self.name,
            "metrics_path": self.endpoint.get("path", "/metrics"),
            "scheme": self.endpoint.get("scheme", "http"),
            "honor_labels": self.endpoint.get("honorLabels", False),
            "scrape_interval": "1s",
            # The operator labels a target with the namespace and the pod of the release.
            "static_configs": [
                {"targets": [self.address], "labels": {"namespace": NAMESPACE, "pod": f"{self.name}-0"}}
            ],
            **self.settings,
        }


class PrometheusProcess:
    """A context manager that runs Prometheus and waits until it is ready."""

    def __init__(
        self, folder: Path, programs: PrometheusPrograms, targets: Sequence[ScrapeTarget], rules: Json
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        config = {
            "global": {"evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [target.config() for target in targets],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [
            programs.server,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.daemon = Daemon("prometheus", command, folder / "prometheus.log")

    def __enter__(self) -> Self:
        self.daemon.start()
        self.daemon.wait_until(self._is_ready, "readiness", _READY_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.daemon.stop(_STOP_SECONDS)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and values of an instant query."""
        result = self._get("query", query=expression)["result"]
        return [(item["metric"], float(item["value"][1])) for item in result]

    def series(self, name: str) -> list[dict[str, str]]:
        """Return the labels of all series of a metric."""
        result: list[dict[str, str]] = self._get("series", **{"match[]": name})
        return result

    def families(self) -> set[str]:
        """Return the names in the HELP and TYPE lines of the scraped pages."""
        return {item["metric"] for item in self._get("targets/metadata")}

    def names(self) -> set[str]:
        """Return the names of all series."""
        return set(self._get("label/__name__/values"))

    def alerts(self) -> list[Json]:
        """Return the pending and firing alerts."""
        result: list[Json] = self._get("alerts")["alerts"]
        return result

    def targets(self) -> str:
        """Return the state of the targets, for messages."""
        active = self._get("targets")["activeTargets"]
        return json.dumps(
            [{key: target[key] for key in ("scrapePool", "health", "lastError")} for target in active]
        )

    def _get(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(
            f"{self.url}/api/v1/{path}", params=parameters, timeout=_ANSWER_SECONDS, trust_env=False
        )
        document = answer.json()
        assert document["status"] == "success", document
        return document["data"]

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=_ANSWER_SECONDS, trust_env=False).is_success
        except httpx.TransportError:
            return False
