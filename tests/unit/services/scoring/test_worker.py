"""Score worker on the bus."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.messaging.contract import Delivery
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.serving import count_replicas, pull_count
from kubealign_services.scoring.worker import MAX_PULL_COUNT, ScoreWorker
from support.bad_specs import whole_job
from support.recorded_spans import parent_of, record_spans

pytestmark = pytest.mark.timeout(60)

_SAMPLES = 5
_SECONDS = 10


class _Together(MemoryBus):
    """A bus that stores a score once all of them are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self._all = asyncio.Barrier(_SAMPLES)

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        if subject == "scores":
            await self._all.wait()
        await super().publish(subject, data, message_id, headers)


async def _score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
    return [scoring_pb2.Score(group_id=each.group_id, sample=each.sample, reward=1.0) for each in rollouts]


async def test_scores_are_published_concurrently() -> None:
    bus = _Together()
    for sample in range(_SAMPLES):
        rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
        await bus.publish("rollouts", rollout.SerializeToString(), str(sample))
    worker = asyncio.create_task(ScoreWorker(bus, "reward-even", frozenset({"train"}), _score).run())
    try:
        async with asyncio.timeout(_SECONDS):
            result: list[int] = []
            while len(result) < _SAMPLES:
                for delivery in await bus.pull("scores", "driver", _SAMPLES, 1.0):
                    result.append(scoring_pb2.Score.FromString(delivery.data).sample)
                    await delivery.ack()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert sorted(result) == list(range(_SAMPLES))


class _SlowScores(MemoryBus):
    """A bus that stores scores once `release` is set, or fails then."""

    def __init__(self) -> None:
        super().__init__(ack_wait=0.5)
        self.release = asyncio.Event()
        self.failure: Exception | None = None
        self.published = 0

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        if subject == "scores":
            await self.release.wait()
            if self.failure is not None:
                raise self.failure
            self.published += 1
        await super().publish(subject, data, message_id, headers)


async def _slow_worker(scored: asyncio.Queue[int]) -> tuple[_SlowScores, "asyncio.Task[None]"]:
    """Return a bus with rollouts, and a worker that puts each of them into the queue when it scores it."""
    bus = _SlowScores()
    for sample in range(_SAMPLES):
        rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
        await bus.publish("rollouts", rollout.SerializeToString(), str(sample))

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        for rollout in rollouts:
            scored.put_nowait(rollout.sample)
        return await _score(rollouts)

    return bus, asyncio.create_task(ScoreWorker(bus, "reward-even", frozenset({"train"}), score, 1).run())


async def test_scores_are_published_while_the_next_rollouts_are_scored() -> None:
    """One call goes ahead; more are made once the scores are stored."""
    scored: asyncio.Queue[int] = asyncio.Queue()
    bus, worker = await _slow_worker(scored)
    try:
        async with asyncio.timeout(_SECONDS):
            assert [await scored.get(), await scored.get()] == [0, 1]
            for _ in range(50):
                await asyncio.sleep(0)
            assert scored.empty() and bus.published == 0
            bus.release.set()
            assert [await scored.get() for _ in range(_SAMPLES - 2)] == [2, 3, 4]
            result: list[int] = []
            while len(result) < _SAMPLES:
                for delivery in await bus.pull("scores", "driver", _SAMPLES, 1.0):
                    result.append(scoring_pb2.Score.FromString(delivery.data).sample)
                    await delivery.ack()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert result == [0, 1, 2, 3, 4]


async def test_scores_that_cannot_be_published_end_the_worker() -> None:
    scored: asyncio.Queue[int] = asyncio.Queue()
    bus, worker = await _slow_worker(scored)
    bus.failure = ConnectionError("the bus is gone")
    bus.release.set()
    async with asyncio.timeout(_SECONDS):
        with pytest.raises(ConnectionError, match="the bus is gone"):
            await worker
        # Their rollouts are not acknowledged: another worker scores them.
        samples: set[int] = set()
        while 0 not in samples:
            for delivery in await bus.pull("rollouts", "reward-even", _SAMPLES, 1.0):
                samples.add(rollout_pb2.Rollout.FromString(delivery.data).sample)


class _Trickle(MemoryBus):
    """A bus to which a rollout is added each time the worker has pulled one."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[int] = []

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        deliveries = await super().pull(subject, consumer, count, timeout)
        if subject == "rollouts" and deliveries:
            await self.add(len(self.added))
        return deliveries

    async def add(self, sample: int) -> None:
        if sample < _SAMPLES:
            self.added.append(sample)
            rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
            await self.publish("rollouts", rollout.SerializeToString(), str(sample))


async def test_rollouts_that_follow_shortly_are_scored_with_the_first() -> None:
    """A worker whose calls take long waits for more than one rollout; the first call has no precedent."""
    bus = _Trickle()
    await bus.add(0)
    calls: list[list[int]] = []
    done = asyncio.Event()

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        calls.append([each.sample for each in rollouts])
        await asyncio.sleep(0.02)
        if sum(map(len, calls)) == _SAMPLES:
            done.set()
        return await _score(rollouts)

    worker = asyncio.create_task(ScoreWorker(bus, "reward-even", frozenset({"train"}), score).run())
    try:
        async with asyncio.timeout(_SECONDS):
            await done.wait()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert calls == [[0], [1, 2], [3, 4]]


async def test_only_rollouts_of_the_given_prompts_are_scored() -> None:
    """Rollouts of other prompts and of validation, which has other rows, are acknowledged without a score."""
    bus = MemoryBus()
    asked: list[str] = []

    class Even:
        def __contains__(self, prompt: object) -> bool:
            asked.append(str(prompt))
            return int(str(prompt).rpartition("/")[2]) % 2 == 0

    rollouts = [("0/0", "train"), ("0/1", "train"), ("0/2", "validation"), ("0/4", "train")]
    for number, (prompt, purpose) in enumerate(rollouts):
        rollout = rollout_pb2.Rollout(fence=1, group_id=prompt, purpose=purpose)
        await bus.publish("rollouts", rollout.SerializeToString(), str(number))
    worker = ScoreWorker(bus, "teacher-even", frozenset({"train"}), _score, prompts=Even())
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(_SECONDS):
            scored: list[str] = []
            while len(scored) < 2:
                for delivery in await bus.pull("scores", "driver", _SAMPLES, 1.0):
                    scored.append(scoring_pb2.Score.FromString(delivery.data).group_id)
                    await delivery.ack()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert scored == ["0/0", "0/4"]
    assert asked == ["0/0", "0/1", "0/4"]


class _HeldScorer:
    """Scorer that records the samples of its calls and returns once `release` is set."""

    def __init__(self, release: asyncio.Event) -> None:
        self.samples: list[int] = []
        self.called = asyncio.Event()
        self._release = release

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        self.samples += [rollout.sample for rollout in rollouts]
        self.called.set()
        await self._release.wait()
        return await _score(rollouts)


async def test_replicas_share_the_waiting_rollouts() -> None:
    """No replica pulls all of them, each is scored once, and those of a lost replica by the other one."""
    bus = MemoryBus(ack_wait=0.5)
    for sample in range(MAX_PULL_COUNT):
        rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
        await bus.publish("rollouts", rollout.SerializeToString(), str(sample))
    release = asyncio.Event()
    scorers = [_HeldScorer(release), _HeldScorer(release)]
    workers = [
        asyncio.create_task(
            ScoreWorker(bus, "reward-even", frozenset({"train"}), scorer, pull_count(len(scorers))).run()
        )
        for scorer in scorers
    ]
    lost, survivor = scorers
    try:
        async with asyncio.timeout(_SECONDS):
            await asyncio.gather(*(scorer.called.wait() for scorer in scorers))
            assert sorted(lost.samples + survivor.samples) == list(range(MAX_PULL_COUNT))
            assert len(lost.samples) == len(survivor.samples)
            workers[0].cancel()
            release.set()
            result: list[int] = []
            while len(result) < MAX_PULL_COUNT:
                for delivery in await bus.pull("scores", "driver", MAX_PULL_COUNT, 1.0):
                    result.append(scoring_pb2.Score.FromString(delivery.data).sample)
                    await delivery.ack()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(result) == sorted(survivor.samples) == list(range(MAX_PULL_COUNT))


class _Gathering(MemoryBus):
    """A bus on which a worker waits for ever for the rollouts that follow the first ones.

    Its acknowledgement wait outlasts the test.
    """

    def __init__(self) -> None:
        super().__init__(ack_wait=10 * _SECONDS)
        self.gathers = asyncio.Event()

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        if subject == "rollouts" and not timeout:
            self.gathers.set()
            await asyncio.Event().wait()
        return await super().pull(subject, consumer, count, timeout)

    async def add(self, samples: Sequence[int]) -> None:
        for sample in samples:
            rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
            await self.publish("rollouts", rollout.SerializeToString(), str(sample))

    async def redelivered(self) -> list[tuple[int, int]]:
        """Return the sample and the number of deliveries of each rollout that can be pulled now."""
        deliveries = await self.pull("rollouts", "reward-even", _SAMPLES, 1.0)
        return sorted((rollout_pb2.Rollout.FromString(each.data).sample, each.attempt) for each in deliveries)


async def test_a_worker_that_leaves_returns_the_rollouts_that_it_scores() -> None:
    bus, scorer = _Gathering(), _HeldScorer(asyncio.Event())
    await bus.add(range(_SAMPLES))
    worker = ScoreWorker(bus, "reward-even", frozenset({"train"}), scorer, _SAMPLES)
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(_SECONDS):
        await scorer.called.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await bus.redelivered() == [(sample, 2) for sample in range(_SAMPLES)]
        assert await bus.pull("scores", "driver", 1, 0.0) == []


async def test_a_worker_that_leaves_returns_the_rollouts_that_it_gathers() -> None:
    """A worker gathers after its first call, whose rollout is settled and not returned."""
    release = asyncio.Event()
    bus, scorer = _Gathering(), _HeldScorer(release)
    release.set()
    await bus.add([0])
    worker = ScoreWorker(bus, "reward-even", frozenset({"train"}), scorer)
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(_SECONDS):
        assert len(await bus.pull("scores", "driver", 1, _SECONDS)) == 1
        await bus.add(range(1, _SAMPLES))
        await bus.gathers.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        deliveries = await bus.redelivered()
    # The worker had the first of them; the others arrived while it gathered.
    assert deliveries == [(1, 2), *((sample, 1) for sample in range(2, _SAMPLES))]
    assert scorer.samples == [0]


async def test_spans_of_unscored_rollouts_are_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check rollouts of three steps, of which one is refused and one has a score with an error."""
    recorder, bus = record_spans(monkeypatch), MemoryBus()
    parents = [f"0af7651916cd43dd8448eb211c80319c-{step:016x}" for step in (1, 2, 3)]
    for step, parent in enumerate(parents):
        rollout = rollout_pb2.Rollout(fence=1, group_id=f"{step}/0", purpose="train")
        headers = {"traceparent": f"00-{parent}-01"}
        await bus.publish("rollouts", rollout.SerializeToString(), str(step), headers)

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        if any(rollout.group_id == "1/0" for rollout in rollouts):
            raise InvalidRequest("text of a prompt")
        errors = {"2/0": "text of a response"}
        return [
            scoring_pb2.Score(group_id=each.group_id, error=errors.get(each.group_id, ""))
            for each in rollouts
        ]

    worker = asyncio.create_task(ScoreWorker(bus, "reward-even", frozenset({"train"}), score).run())
    try:
        async with asyncio.timeout(_SECONDS):
            scored: list[str] = []
            while len(scored) < 2:
                for delivery in await bus.pull("scores", "driver", _SAMPLES, 1.0):
                    scored.append(scoring_pb2.Score.FromString(delivery.data).group_id)
                    await delivery.ack()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert scored == ["0/0", "2/0"]
    errors = {
        parent_of(span): (span.status.status_code.name, (span.attributes or {}).get("error.type"))
        for span in recorder.named("Score")
    }
    assert errors == {
        parents[0]: ("UNSET", None),
        parents[1]: ("ERROR", "InvalidRequest"),
        parents[2]: ("ERROR", "FailedScore"),
    }
    assert not any("text of" in span.to_json() for span in recorder.named("Score"))


@pytest.mark.parametrize(("replicas", "count"), [(0, 64), (1, 64), (2, 32), (3, 21), (64, 1), (1024, 1)])
def test_the_pull_count_is_a_share_of_the_largest_one(replicas: int, count: int) -> None:
    assert pull_count(replicas) == count


def test_ranks_of_a_replica_count_once() -> None:
    job = AlignmentJob.model_validate(whole_job("ppo", {"spec.reference": {"replicas": 3, "ranks": 2}}))
    assert [count_replicas(job, group) for group in ("reference", "reward-helpful")] == [3, 1]


async def test_the_samples_of_a_group_are_scored_together_or_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check three groups in one pull: the second one is refused, the third one has a score with an error."""
    recorder, bus = record_spans(monkeypatch), MemoryBus()
    parents = [f"0af7651916cd43dd8448eb211c80319c-{step:016x}" for step in (1, 2, 3)]
    for number, parent in enumerate(parents):
        message = rollout_pb2.Rollout(
            fence=1,
            group_id=f"0/{number}",
            purpose="train@rank",
            columns=b"{}",
            group=[rollout_pb2.Rollout(sample=sample) for sample in range(2)],
        )
        headers = {"traceparent": f"00-{parent}-01"}
        await bus.publish("rollouts", message.SerializeToString(), str(number), headers)
    calls: list[list[tuple[str, int]]] = []

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        calls.append([(each.group_id, each.sample) for each in rollouts])
        assert all((each.fence, each.columns) == (1, b"{}") for each in rollouts)
        if any(each.group_id == "0/1" for each in rollouts):
            raise InvalidRequest("no row")
        scores = await _score(rollouts)
        for each in scores:
            each.error = "raised" if (each.group_id, each.sample) == ("0/2", 1) else ""
        return scores

    worker = asyncio.create_task(ScoreWorker(bus, "reward-rank", frozenset({"train@rank"}), score).run())
    try:
        async with asyncio.timeout(_SECONDS):
            scored: list[tuple[str, int]] = []
            while len(scored) < 4:
                for delivery in await bus.pull("scores", "driver", _SAMPLES, 1.0):
                    received = scoring_pb2.Score.FromString(delivery.data)
                    scored.append((received.group_id, received.sample))
                    await delivery.ack()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    pairs = [[(f"0/{number}", 0), (f"0/{number}", 1)] for number in range(3)]
    assert calls == [[*pairs[0], *pairs[1], *pairs[2]], *pairs]
    assert sorted(scored) == [*pairs[0], *pairs[2]]
    errors = {parent_of(span): (span.attributes or {}).get("error.type") for span in recorder.named("Score")}
    assert errors == {parents[0]: None, parents[1]: "InvalidRequest", parents[2]: "FailedScore"}
