"""Traces of a whole job, as an OTLP endpoint gets them: one for each step, over all roles."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from support.running import run_command
from support.tiny_jobs import online_job, sft_job, write_jobs

pytestmark = pytest.mark.timeout(180)

STEPS = 3
PROMPTS, SAMPLES = 2, 2
# Lengths of `online_job`.
MAX_TOKENS, PROMPT_TOKENS = 4, 2


@dataclass(frozen=True)
class Span:
    """A received span, with the process that sent it."""

    process: str
    service: str
    name: str
    trace: bytes
    identity: bytes
    parent: bytes
    attributes: dict[str, int | str]
    started: int
    seconds: float
    failed: bool

    @property
    def step(self) -> int | None:
        step = self.attributes.get("kubealign.step")
        return step if isinstance(step, int) else None


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
                    attributes = {each.key: each.value for each in span.attributes}
                    self.spans.append(
                        Span(
                            resource["service.instance.id"],
                            resource["service.name"],
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            {
                                key: value.string_value
                                if value.WhichOneof("value") == "string_value"
                                else value.int_value
                                for key, value in attributes.items()
                            },
                            span.start_time_unix_nano,
                            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            span.status.code == Status.STATUS_CODE_ERROR,
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
    run_traced_job(collector, tmp_path, monkeypatch)
    roots, traces = steps_and_traces(collector)
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
        check_generation(step, roots[step], spans)
        check_scoring(roots[step], spans)
    # The work is in the traces of the steps, and in no other.
    assert {span.parent for span in collector.spans if span.name in ("Generate", "Score")} == {
        roots[step].identity for step in range(1, STEPS + 1)
    }


def check_generation(step: int, root: Span, spans: Sequence[Span]) -> None:
    """Check the spans of the rollout worker: one for each prompt of the step, below the step."""
    generated = [span for span in spans if span.name == "Generate"]
    assert len(generated) == PROMPTS
    for span in generated:
        assert (span.process, span.service, span.parent) == ("rollout-0", "kubealign-rollout", root.identity)
        assert span.started >= root.started and not span.failed
        assert 0 < int(span.attributes.pop("kubealign.tokens")) <= SAMPLES * MAX_TOKENS
        assert span.attributes == {
            "messaging.system": "nats",
            "messaging.destination.name": "work",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "kubealign.fence": root.attributes["kubealign.fence"],
            "kubealign.purpose": "train",
            "kubealign.attempt": 0,
            "kubealign.prompts": 1,
            "kubealign.prompt_tokens": PROMPT_TOKENS,
            "kubealign.samples": SAMPLES,
            "kubealign.weights_version": step - 1,
        }


def check_scoring(root: Span, spans: Sequence[Span]) -> None:
    """Check the spans of reward and reference: together they have scored each sample of the step once."""
    rollouts: Counter[tuple[str, str, str]] = Counter()
    for span in spans:
        if span.name == "Score":
            assert span.parent == root.identity
            assert span.started >= root.started and not span.failed
            scorer = str(span.attributes["kubealign.scorer"])
            rollouts[span.process, span.service, scorer] += int(span.attributes["kubealign.rollouts"])
            assert set(span.attributes) == {
                "messaging.system",
                "messaging.destination.name",
                "messaging.operation.name",
                "messaging.operation.type",
                "kubealign.scorer",
                "kubealign.rollouts",
            }
    assert rollouts == {
        ("reward-letters-0", "kubealign-reward", "reward-letters"): PROMPTS * SAMPLES,
        ("reference-0", "kubealign-reference", "reference"): PROMPTS * SAMPLES,
    }


def test_work_ahead_of_its_step_is_below_the_step_that_requests_it(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check an asynchronous job: the first step requests prompts for two steps, each later one for one."""
    run_traced_job(collector, tmp_path, monkeypatch, maxStaleness=1)
    roots, traces = steps_and_traces(collector)
    for step in range(1, STEPS + 1):
        work = [span for span in traces[roots[step].trace] if span.name in ("Generate", "Score")]
        assert {span.parent for span in work} == {roots[step].identity}
        generated = [span for span in work if span.name == "Generate"]
        scored = [span.attributes["kubealign.rollouts"] for span in work if span.name == "Score"]
        if step < STEPS:
            prompts = 2 * PROMPTS if step == 1 else PROMPTS
            assert len(generated) == prompts
            assert sum(map(int, scored)) == 2 * prompts * SAMPLES


def test_scores_of_given_rows_are_below_the_phase_that_requests_them(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a job without rollouts, whose steps wait for the reference in a phase."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": first, "chosen": "b", "rejected": "a"} for first in "abcdef"]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    algorithm = {"dpo": {"rowsPerStep": 2}}
    data = {"preferences": {"source": {"path": str(pairs)}}}
    run_job(collector, tmp_path, monkeypatch, sft_job(tmp_path, "traced", algorithm=algorithm, data=data))
    roots, traces = steps_and_traces(collector)
    for step in range(1, STEPS + 1):
        spans = traces[roots[step].trace]
        (phase,) = [span for span in spans if (span.process, span.name) == ("driver", "reference")]
        assert phase.parent == roots[step].identity
        scored = [span for span in spans if span.name == "Score"]
        assert {(span.process, span.parent) for span in scored} == {("reference-0", phase.identity)}
        # A preferred and a rejected response for each row.
        assert sum(int(span.attributes["kubealign.rollouts"]) for span in scored) == 4


def run_traced_job(
    collector: Collector, folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: object
) -> None:
    """Run a job with reward and reference, whose processes send their spans to the collector."""
    # The coefficient is not 0, so that the job has a reference.
    kl = {"kl": {"fixed": {"coefficient": 0.01}}}
    algorithm = {"rloo": {"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES} | kl | fields}
    run_job(collector, folder, monkeypatch, online_job(folder, "traced", algorithm, maxSteps=STEPS))


def run_job(collector: Collector, folder: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any]) -> None:
    """Run a job whose processes send their spans to the collector."""
    host, port = collector.server.server_address[:2]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{host}:{port}")
    file = write_jobs(folder, job)
    ended = run_command("run", str(file), "--runs-dir", str(folder / "runs"), timeout=150)
    assert ended.code == 0, ended.output


def steps_and_traces(collector: Collector) -> tuple[dict[int, Span], dict[bytes, list[Span]]]:
    """Return step -> root span, and the spans of each trace."""
    traces: defaultdict[bytes, list[Span]] = defaultdict(list)
    for span in collector.spans:
        traces[span.trace].append(span)
    roots = {span.step: span for span in collector.spans if span.name == "step" and span.step is not None}
    assert set(roots) >= set(range(1, STEPS + 1))
    return roots, traces
