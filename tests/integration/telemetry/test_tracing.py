"""Traces of a whole job, as an OTLP endpoint gets them: one for each step, with the calls of processes."""

import gzip
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.running import run_command
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(180)

STEPS = 3


@dataclass(frozen=True)
class Span:
    """A received span, with the process that sent it."""

    process: str
    name: str
    trace: bytes
    identity: bytes
    parent: bytes
    step: int | None
    seconds: float


class Collector:
    """An endpoint of OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.receive(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Write no line for each request."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def receive(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            resource = {each.key: each.value.string_value for each in group.resource.attributes}
            assert resource["kubealign.job"] == "traced"
            for scope in group.scope_spans:
                for span in scope.spans:
                    numbers = {each.key: each.value.int_value for each in span.attributes}
                    self.spans.append(
                        Span(
                            resource["service.instance.id"],
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            numbers.get("kubealign.step"),
                            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        )
                    )


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    thread.join(10)


def test_every_step_is_a_trace_over_the_processes(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = collector.server.server_address[:2]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{host}:{port}")
    algorithm = {"rloo": {"promptsPerStep": 2, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0.0}}}}
    file = write_jobs(tmp_path, online_job(tmp_path, "traced", algorithm, maxSteps=STEPS))
    ended = run_command("run", str(file), "--runs-dir", str(tmp_path / "runs"), timeout=150)
    assert ended.code == 0, ended.output
    traces: defaultdict[bytes, list[Span]] = defaultdict(list)
    for span in collector.spans:
        traces[span.trace].append(span)
    roots = {span.step: span for span in collector.spans if span.name == "step" and span.step is not None}
    assert set(roots) >= set(range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        spans = traces[roots[step].trace]
        by_id = {span.identity: span for span in spans}
        names = {(span.process, span.name) for span in spans}
        assert {("driver", "generate"), ("driver", "score"), ("driver", "train")} <= names
        # The trainer's part of the step is within the driver's phase.
        (served,) = [span for span in spans if span.name == "kubealign.v1.Trainer/TrainStep"]
        assert served.process == "trainer-0"
        phase = by_id[served.parent]
        assert (phase.process, phase.name) == ("driver", "train")
        assert by_id[phase.parent] == roots[step]
        assert served.seconds <= phase.seconds <= roots[step].seconds
