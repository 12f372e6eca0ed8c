"""The engine loop without a Triton server: sessions, streams and control requests, over an engine that
counts.
"""

import math
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    EngineLoad,
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.triton_engine.engine_loop import EngineLoop
from kubealign_services.generation.triton_engine.messages import (
    Op,
    decode,
    encode,
    parse_request,
    parse_sample,
    request_fields,
    sample_fields,
)
from kubealign_services.generation.triton_engine.weights_file import write_weights

SECONDS = 20.0


class Counting:
    """An engine whose sample of n tokens takes n steps; the tokens are 0, 1, 2 ..."""

    def __init__(self) -> None:
        self.version = -1
        self.steps = 0
        self.taken: dict[str, Tensor] = {}
        self._running: dict[str, tuple[GenerationRequest, int]] = {}

    def add(self, request: GenerationRequest) -> None:
        if not request.prompt_tokens:
            raise RequestRefused("prompt_tokens is empty")
        if request.request_id in self._running:
            raise RequestRefused("it is here already")
        self._running[request.request_id] = (request, 0)

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def step(self) -> list[GeneratedSample]:
        ended: list[GeneratedSample] = []
        self.steps += 1
        for name, (request, generated) in list(self._running.items()):
            if request.prompt_tokens == (13,):
                raise ArithmeticError("logits that are NaN")
            self._running[name] = (request, generated + 1)
            if generated + 1 == request.sampling.max_tokens:
                del self._running[name]
                tokens = list(range(generated + 1))
                flat = [-0.5] * len(tokens)
                ended += [
                    GeneratedSample(
                        name, i, tokens, flat, flat, [self.version] * len(tokens), FinishReason.LENGTH, ""
                    )
                    for i in range(len(request.seeds))
                ]
        return ended

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._running))

    def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self.taken = {name: tensor.clone() for name, tensor in tensors}
        self.version, self.in_flight = version, in_flight

    def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        raise RuntimeError("an adapter came before its base")

    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        if len(tokens) < 2:
            raise ValueError("too few tokens")
        return [-float(token) for token in tokens[1:]]


class Stream:
    """A Reply that records its messages."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.closed = threading.Event()
        self.gone = False
        self._news = threading.Condition()

    def send(self, message: dict[str, Any]) -> None:
        with self._news:
            self.messages.append(decode(encode(message)))
            self._news.notify_all()

    def close(self) -> None:
        self.closed.set()

    def is_cancelled(self) -> bool:
        return self.gone

    def first(self) -> dict[str, Any]:
        with self._news:
            assert self._news.wait_for(lambda: bool(self.messages), SECONDS)
            return self.messages[0]


class Client:
    def __init__(self) -> None:
        self.engines: list[Counting] = []
        self.loop = EngineLoop(self._create)
        self.session = ""
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def _create(self, folder: Path, spec: TorchEngineSpec, threads: int | None) -> Counting:
        if folder.name == "bad":
            raise ValueError(f"{folder} is no model")
        self.engines.append(Counting())
        return self.engines[-1]

    def open(self, owner: str = "w0", folder: str = "/model") -> Stream:
        opened = Stream()
        engine = TorchEngineSpec().model_dump(mode="json")
        message = {"op": Op.OPEN, "owner": owner, "folder": folder, "engine": engine, "threads": 1}
        self.loop.submit(message, opened)
        if "result" in opened.first():
            self.session = opened.first()["result"]["session"]
        return opened

    def say(self, op: str, **fields: Any) -> Stream:
        stream = Stream()
        self.loop.submit({"op": op, "session": self.session, **fields}, stream)
        return stream

    def refit(self, folder: Path, version: int, in_flight: InFlightPolicy = InFlightPolicy.DRAIN) -> None:
        path = folder / "weights"
        entries = write_weights(path, [("w", torch.tensor([1.0, 2.0]))])
        asked = self.say(Op.REFIT, path=str(path), tensors=entries, version=version, in_flight=in_flight)
        assert asked.first() == {"result": None}

    def generate(self, name: str, tokens: int, prompt: tuple[int, ...] = (1,), samples: int = 2) -> Stream:
        request = GenerationRequest(name, prompt, tuple(range(samples)), SamplingParameters(tokens))
        return self.say(Op.GENERATE, request=request_fields(request))


@pytest.fixture
def client() -> Iterator[Client]:
    test_client = Client()
    yield test_client
    test_client.loop.stop()
    test_client.thread.join(SECONDS)
    assert not test_client.thread.is_alive()


def test_messages_survive_encoding() -> None:
    request = GenerationRequest(
        "r", (1, 2), (2**64 - 1, 0), SamplingParameters(4, 1, 0.7, 3, 0.9, ("a", "b"), (5, 6))
    )
    assert parse_request(decode(encode(request_fields(request)))) == request
    sample = GeneratedSample("r", 1, [3], [-math.inf], [-1 / 3], [7], FinishReason.STOP, "é", 0.25)
    assert parse_sample(decode(encode(sample_fields(sample)))) == sample
    with pytest.raises(ValueError, match="a message is a JSON object, not list"):
        decode(b"[]")


def test_stream_closes_after_the_last_sample(client: Client, tmp_path: Path) -> None:
    client.open()
    assert client.generate("early", 2).first()["error"] == "lost"
    client.refit(tmp_path, 4)
    assert torch.equal(client.engines[0].taken["w"], torch.tensor([1.0, 2.0]))
    stream = client.generate("a", 3)
    assert stream.closed.wait(SECONDS)
    samples = [parse_sample(message["sample"]) for message in stream.messages]
    assert [(s.sample, s.tokens, s.versions) for s in samples] == [(i, [0, 1, 2], [4, 4, 4]) for i in (0, 1)]


def test_abort_frees_resources(client: Client, tmp_path: Path) -> None:
    """The id is free at once; other requests continue."""
    client.open()
    client.refit(tmp_path, 1)
    endless = client.generate("a", 10**9)
    concurrent = client.generate("b", 5)
    client.say(Op.ABORT, request_id="a")
    again = client.generate("a", 2)
    for stream in (endless, concurrent, again):
        assert stream.closed.wait(SECONDS)
    assert not endless.messages
    assert len(concurrent.messages) == len(again.messages) == 2


@pytest.mark.parametrize("how", ["close", "gone"])
def test_ended_session_closes_its_streams(client: Client, tmp_path: Path, how: str) -> None:
    opened = client.open()
    client.refit(tmp_path, 1)
    endless = client.generate("a", 10**9)
    other = Stream()
    refused = client.open("w1")
    assert refused.first()["error"] == "state"
    assert refused.first()["words"].startswith("w0 has the engine")
    if how == "close":
        assert client.say(Op.CLOSE).first() == {"result": None}
    else:
        opened.gone = True
    assert endless.closed.wait(SECONDS)
    assert opened.closed.wait(SECONDS)
    assert client.generate("b", 1).first()["error"] == "lost"
    assert "result" in client.open("w1").first()
    assert len(client.engines) == 2
    assert not other.messages


def test_errors_have_a_kind(client: Client, tmp_path: Path) -> None:
    assert client.say(Op.SEQUENCE_LOGPROBS, tokens=[1, 2]).first()["error"] == "lost"
    assert client.open(folder="/bad").first() == {"error": "model", "words": "/bad is no model"}
    client.open()
    client.refit(tmp_path, 1)
    assert client.generate("a", 1, prompt=()).first() == {
        "error": "request",
        "words": "prompt_tokens is empty",
    }
    assert client.say(Op.SEQUENCE_LOGPROBS, tokens=[1]).first() == {
        "error": "value",
        "words": "too few tokens",
    }
    assert client.say(Op.REFIT, version=2).first() == {"error": "value", "words": "'path' is missing"}
    gone = client.say(Op.REFIT, path=str(tmp_path / "none"), tensors=[], version=2)
    assert gone.first()["error"] == "value"
    entries = write_weights(tmp_path / "weights", [])
    adapted = {"path": str(tmp_path / "weights"), "tensors": entries, "version": 2, "scale": 1.0}
    odd = client.say(Op.ADAPT, **adapted, in_flight="Halt")
    assert odd.first() == {"error": "value", "words": "'Halt' is not a valid InFlightPolicy"}
    early = client.say(Op.ADAPT, **adapted, in_flight=InFlightPolicy.DRAIN)
    assert early.first() == {"error": "state", "words": "an adapter came before its base"}
    assert client.say("dance").first()["error"] == "value"
    assert client.say(Op.SEQUENCE_LOGPROBS, tokens=[1, 2]).first() == {"result": [-2.0]}
    scores = client.say(Op.CONTINUATION_LOGPROBS, prompt=[9, 8], continuations=[[1, 2], [3]])
    assert scores.first() == {"result": {"logprobs": [[-1.0, -2.0], [-3.0]], "version": 1}}


def test_failed_engine_ends_the_session_with_its_error(client: Client, tmp_path: Path) -> None:
    opened = client.open()
    client.refit(tmp_path, 1)
    endless = client.generate("a", 10**9)
    client.generate("b", 1, prompt=(13,))
    assert endless.closed.wait(SECONDS)
    assert opened.closed.wait(SECONDS)
    assert opened.messages[-1] == {"failed": "ArithmeticError: logits that are NaN"}


def test_paused_engine_generates_nothing_and_answers_other_requests(client: Client, tmp_path: Path) -> None:
    """New requests wait too, aborted ones end; the others continue after RELEASE."""
    opened = client.open()
    client.refit(tmp_path, 1)
    running, gone = client.generate("a", 10**9), client.generate("gone", 10**9)
    assert client.say(Op.HOLD).first() == {"result": None}
    steps = client.engines[0].steps
    later = client.generate("b", 2)
    client.say(Op.ABORT, request_id="gone")
    assert gone.closed.wait(SECONDS)
    client.refit(tmp_path, 2, InFlightPolicy.CONTINUE)
    assert client.engines[0].in_flight is InFlightPolicy.CONTINUE
    assert client.say(Op.SEQUENCE_LOGPROBS, tokens=[1, 2]).first() == {"result": [-2.0]}
    message_count = len(opened.messages)
    deadline = time.monotonic() + SECONDS
    while len(opened.messages) == message_count:  # load messages continue while paused
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert client.engines[0].steps == steps
    client.say(Op.RELEASE, lost="")
    assert later.closed.wait(SECONDS)
    assert [parse_sample(message["sample"]).versions for message in later.messages] == [[2, 2], [2, 2]]
    assert not running.closed.is_set()


def test_release_as_lost_drops_paused_requests(client: Client, tmp_path: Path) -> None:
    """Samples of dropped requests are not stepped again; their ids are free."""
    client.open()
    client.refit(tmp_path, 1)
    paused = client.generate("a", 10**9)
    assert client.say(Op.HOLD).first() == {"result": None}
    steps = client.engines[0].steps
    client.say(Op.RELEASE, lost="the canary said no")
    assert paused.closed.wait(SECONDS)
    assert paused.messages == [{"error": "lost", "words": "the canary said no"}]
    assert client.engines[0].steps == steps
    again = client.generate("a", 2)
    assert again.closed.wait(SECONDS)
    assert len(again.messages) == 2


def test_ended_session_resumes_the_engine(client: Client, tmp_path: Path) -> None:
    client.open()
    client.refit(tmp_path, 1)
    assert client.say(Op.HOLD).first() == {"result": None}
    assert client.say(Op.CLOSE).first() == {"result": None}
    client.open()
    client.refit(tmp_path, 1)
    assert client.generate("a", 2).closed.wait(SECONDS)


def test_load_is_reported_while_idle(client: Client, tmp_path: Path) -> None:
    opened = client.open()
    client.refit(tmp_path, 1)
    client.generate("a", 10**9)
    deadline = time.monotonic() + SECONDS
    while opened.messages[-1].get("load", {}).get("running") != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
