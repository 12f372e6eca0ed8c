"""The refit protocol in one process: announce, transfer, verify, commit, acknowledge, and every failure."""

import asyncio
import os
from typing import Any

import pytest
import torch

from kubealign.spec.sections.rollout import WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.weights.announce.coordinator import RefitCoordinator, RefitFailed
from kubealign_services.weights.receive.refit_worker import Quarantined
from kubealign_services.weights.send.snapshot_file import HEADER_BYTES
from kubealign_services.weights.transfer import shared_memory

pytestmark = pytest.mark.timeout(60)


def flip_in_memory(stage: Any, announcement: refit_pb2.WeightsAnnouncement, offset: int = 100) -> None:
    """Flip one byte of the segment, like a stray write."""
    path = stage.folder / announcement.parts[0].sources[0].shared_memory.name
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, HEADER_BYTES + offset)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), HEADER_BYTES + offset)


def flip_first_chunk(chunk: refit_pb2.WeightsChunk) -> None:
    chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]


@pytest.mark.parametrize("transport", [WeightTransport.SHARED_MEMORY, WeightTransport.STREAM])
async def test_ten_versions_arrive_bit_for_bit(stage: Any, transport: WeightTransport) -> None:
    sender = stage.sender(transport)
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        for version in range(10):
            report = await broadcast.publish(version)
            for name, weight in sender.model.weights.items():
                assert torch.equal(receiver.model.weights[name], weight)
            assert receiver.worker.current == sender.announcements[-1].weights
            used = "shared_memory" if transport is WeightTransport.SHARED_MEMORY else "stream"
            assert [answer.transport for answer in report.committed.values()] == [used]
            assert report.metrics()["refit/canary_gap"] <= 1e-6
            # Two tensors of 50 x 16 numbers of 4 bytes, both multiples of 64.
            assert report.metrics()["refit/bytes"] == 6400
            sender.model.step()


async def test_auto_transport_streams_to_other_machines(stage: Any) -> None:
    sender = stage.sender()
    stage.receiver("near", sender)
    stage.receiver("far", sender, elsewhere=True)
    async with stage.broadcast(sender, min_replicas=2, replicas=2) as broadcast:
        report = await broadcast.publish(0)
        assert {name: answer.transport for name, answer in report.committed.items()} == {
            "near": "shared_memory",
            "far": "stream",
        }
        figures = report.metrics()
        assert (figures["refit/shared_memory_workers"], figures["refit/stream_workers"]) == (1, 1)


async def test_unreachable_sources_are_reported(stage: Any) -> None:
    sender = stage.sender(WeightTransport.SHARED_MEMORY)
    stage.receiver("far", sender, elsewhere=True)
    async with stage.broadcast(sender) as broadcast:
        with pytest.raises(RefitFailed, match="is reachable from this process: shared memory weights-"):
            await broadcast.publish(0)


async def test_corrupt_segment_is_refused_and_repaired_by_a_full_publication(stage: Any) -> None:
    sender = stage.sender()
    publish = sender.publish

    async def publish_and_harm(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        announcement: refit_pb2.WeightsAnnouncement = await publish(fence, version)
        if len(sender.published) == 1:
            # Both sources read the segment, so both are corrupt.
            flip_in_memory(stage, announcement)
        return announcement

    sender.publish = publish_and_harm
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        report = await broadcast.publish(0)
    assert (report.retries, sender.published, sender.streams, receiver.refits) == (1, [0, 0], 1, 2)
    assert torch.equal(receiver.model.weights["embed.weight"], sender.model.weights["embed.weight"])


async def test_damaged_map_falls_back_to_the_stream(stage: Any) -> None:
    """The receiver maps other bytes than the sender wrote; no new publication is needed."""
    sender = stage.sender()
    publish = sender.publish
    chunks = sender.publisher.chunks

    async def publish_and_harm(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        announcement: refit_pb2.WeightsAnnouncement = await publish(fence, version)
        all_chunks = list(chunks(refit_pb2.FetchWeightsRequest(weights=announcement.weights)))
        sender.publisher.chunks = lambda request: iter(all_chunks)
        flip_in_memory(stage, announcement)
        return announcement

    sender.publish = publish_and_harm
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        report = await broadcast.publish(0)
    assert (report.retries, sender.streams, receiver.refits) == (0, 1, 2)
    assert report.committed["rollout-0"].transport == "stream"


async def test_corrupt_stream_is_fetched_again(stage: Any) -> None:
    sender = stage.sender(WeightTransport.STREAM)
    receiver = stage.receiver("rollout-0", sender)

    def harm_once(chunk: refit_pb2.WeightsChunk) -> None:
        if sender.streams == 1:
            flip_first_chunk(chunk)

    sender.harm = harm_once
    async with stage.broadcast(sender) as broadcast:
        report = await broadcast.publish(0)
    assert (sender.streams, report.retries, sender.published) == (2, 0, [0])
    assert torch.equal(receiver.model.weights["embed.weight"], sender.model.weights["embed.weight"])


async def test_repeatedly_corrupt_transfer_is_repaired_by_a_full_publication(stage: Any) -> None:
    sender = stage.sender(WeightTransport.STREAM)
    receiver = stage.receiver("rollout-0", sender)

    def harm_first_publication(chunk: refit_pb2.WeightsChunk) -> None:
        if len(sender.published) == 1:
            flip_first_chunk(chunk)

    sender.harm = harm_first_publication
    async with stage.broadcast(sender) as broadcast:
        report = await broadcast.publish(0)
        assert (report.retries, sender.published, receiver.refits) == (1, [0, 0], 1)
        assert broadcast.quarantined == frozenset()


async def test_always_corrupt_transfer_fails_the_job_and_names_the_tensor(stage: Any) -> None:
    sender = stage.sender(WeightTransport.STREAM)
    receiver = stage.receiver("rollout-0", sender)
    sender.harm = flip_first_chunk
    async with stage.broadcast(sender) as broadcast:
        with pytest.raises(RefitFailed) as caught:
            await broadcast.publish(3)
    text = str(caught.value)
    assert "weights version 3 (fence 1" in text
    assert "reached 0 rollout workers, rollout.minReplicas is 1" in text
    assert text.count("rollout-0: CorruptTransfer: 1 of 2 tensors from trainer:1") == 2
    assert "have the wrong checksum: embed.weight" in text
    assert sender.published == [3, 3]
    assert receiver.refits == 0
    with pytest.raises(Quarantined, match="CorruptTransfer"):
        await receiver.worker.wait_for_version(1, 3, timeout=5)


async def test_truncated_or_overlong_stream_is_corrupt(stage: Any) -> None:
    sender = stage.sender(WeightTransport.STREAM)
    stage.receiver("rollout-0", sender)

    def cut(chunk: refit_pb2.WeightsChunk) -> None:
        chunk.data = chunk.data[:-4]

    def overrun(chunk: refit_pb2.WeightsChunk) -> None:
        chunk.data += b"more"

    async with stage.broadcast(sender) as broadcast:
        sender.harm = cut
        with pytest.raises(RefitFailed, match="sent 6396 bytes and ended; 1 pieces are missing"):
            await broadcast.publish(0)
        sender.harm = overrun
        with pytest.raises(RefitFailed, match="sent bytes up to 6404 of a snapshot of 6400"):
            await broadcast.publish(1)


async def test_canary_mismatch_quarantines_until_a_refit_succeeds(stage: Any) -> None:
    sender = stage.sender()
    good, bad = stage.receiver("good", sender), stage.receiver("bad", sender)
    right = bad.sequence_logprobs

    async def wrong(tokens: list[int]) -> list[float]:
        return [value + 0.01 for value in await right(tokens)]

    bad.sequence_logprobs = wrong
    async with stage.broadcast(sender, min_replicas=1, replicas=2) as broadcast:
        await broadcast.publish(0)
        await good.worker.wait_for_version(1, 0, timeout=5)
        with pytest.raises(Quarantined, match=r"CanaryMismatch: .* differ by 0\.01 nats .* more than 0\.001"):
            await bad.worker.wait_for_version(1, 0, timeout=5)
        bad.sequence_logprobs = right
        await broadcast.publish(1)
        await bad.worker.wait_until_released()
        await bad.worker.wait_for_version(1, 1, timeout=5)


async def test_weights_that_do_not_match_are_refused_with_the_engines_error(stage: Any) -> None:
    sender = stage.sender()
    sender.model.weights["extra.bias"] = torch.zeros(3)
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        with pytest.raises(RefitFailed, match=r"ValueError: the model has .* not .*extra\.bias"):
            await broadcast.publish(0)
    # The model may have been partly written: its weights are unknown.
    assert receiver.worker.current is None


async def test_quorum_without_the_slow_worker(stage: Any) -> None:
    sender = stage.sender()
    quick, slow = stage.receiver("quick", sender), stage.receiver("slow", sender)
    slow.idle.clear()
    async with stage.broadcast(sender, min_replicas=1, replicas=2) as broadcast:
        report = await broadcast.publish(0)
        assert set(report.committed) == {"quick"}
        slow.idle.set()
        await slow.worker.wait_for_version(1, 0, timeout=5)
        assert quick.worker.current == slow.worker.current


async def test_lost_quorum_names_silent_workers(stage: Any) -> None:
    sender = stage.sender()
    stage.receiver("quick", sender)
    slow = stage.receiver("slow", sender)
    async with stage.broadcast(sender, min_replicas=2, replicas=2, timeout=0.3) as broadcast:
        await broadcast.publish(0)
        slow.idle.clear()
        with pytest.raises(RefitFailed, match=r"slow: no answer within 0\.3 s\. Second try: no worker"):
            await broadcast.publish(1)
        assert broadcast.quarantined == {"slow"}
        slow.idle.set()


async def test_deadline_without_any_worker(stage: Any) -> None:
    async with stage.broadcast(stage.sender(), timeout=0.1) as broadcast:
        with pytest.raises(RefitFailed, match=r"no worker answered within 0\.1 s"):
            await broadcast.publish(0)


async def test_late_joiner_gets_the_newest_version(stage: Any) -> None:
    sender = stage.sender()
    stage.receiver("first", sender)
    async with stage.broadcast(sender) as broadcast:
        await broadcast.publish(0)
        sender.model.step()
        await broadcast.publish(1)
        late = stage.receiver("late", sender)
        await late.worker.wait_for_version(1, 1, timeout=5)
        assert late.refits == 1
        assert torch.equal(late.model.weights["head.weight"], sender.model.weights["head.weight"])


async def test_workers_with_the_weights_do_not_fetch_them_again(stage: Any) -> None:
    """The full retry after a lost quorum reaches the failed worker; the other one only acknowledges."""
    sender = stage.sender()
    good, bad = stage.receiver("good", sender), stage.receiver("bad", sender)
    failures = iter([RuntimeError("no memory")])

    def fail_once() -> None:
        for failure in failures:
            raise failure

    bad.before_copy = fail_once
    async with stage.broadcast(sender, min_replicas=2, replicas=2) as broadcast:
        report = await broadcast.publish(0)
    assert (report.retries, good.refits, bad.refits) == (1, 1, 1)
    assert report.committed["good"].received_bytes == 0
    assert report.committed["bad"].received_bytes == 6400


async def test_reader_slower_than_two_publications_gets_the_newest(stage: Any) -> None:
    """Its mapped snapshot stays intact until it is done."""
    sender = stage.sender()
    quick, slow = stage.receiver("quick", sender), stage.receiver("slow", sender)
    slow.idle.clear()
    async with stage.broadcast(sender, min_replicas=1, replicas=2) as broadcast:
        await broadcast.publish(0)
        # The slow one holds version 0 and waits for its engine; two more versions would overwrite it.
        for version in (1, 2):
            sender.model.step()
            await broadcast.publish(version)
        slow.idle.set()
        await slow.worker.wait_for_version(1, 0, timeout=5)
        assert not slow.worker.quarantined
        await slow.worker.wait_for_version(1, 2, timeout=5)
        assert slow.worker.current == quick.worker.current
        assert slow.refits == 2
        assert len(list(stage.folder.glob("weights-*"))) == 2
        assert torch.equal(slow.model.weights["embed.weight"], sender.model.weights["embed.weight"])


async def test_overwrite_during_the_copy_is_detected(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is on a file system without locks."""
    monkeypatch.setattr(shared_memory._OpenFile, "lock", lambda file: False)
    sender = stage.sender(WeightTransport.SHARED_MEMORY)
    receiver = stage.receiver("rollout-0", sender)
    # Differs in a region that the canary does not check: only the file's header reveals it.
    other = {name: weight.clone() for name, weight in sender.model.weights.items()}
    unseen = next(token for token in range(50) if token not in sender.canary.tokens)
    other["embed.weight"][unseen] += 1.0

    def overwrite() -> None:
        if len(sender.published) == 1:
            for version in (8, 9):
                sender.publisher.publish(
                    fence=1,
                    version=version,
                    tensors=iter(other.items()),
                    canary=refit_pb2.Canary(),
                )

    # Two publications after the bytes were verified and before they are copied.
    receiver.before_copy = overwrite
    async with stage.broadcast(sender) as broadcast:
        report = await broadcast.publish(0)
        assert (report.retries, receiver.refits) == (1, 2)
        for name, weight in sender.model.weights.items():
            assert torch.equal(receiver.model.weights[name], weight)


async def test_older_fences_are_refused(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("rollout-0", sender)
    waiting = asyncio.create_task(receiver.worker.wait_for_version(1, 5, timeout=30))
    async with stage.broadcast(sender, fence=2) as broadcast:
        await broadcast.publish(0)
        with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
            await waiting
    current = receiver.worker.current
    async with stage.broadcast(sender, fence=1) as old:
        with pytest.raises(RefitFailed, match="fence 1 has been replaced by 2"):
            await old.publish(1)
    assert receiver.worker.current == current
    assert not receiver.worker.quarantined


async def test_repeated_version_under_a_new_fence_is_loaded(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender, fence=1) as broadcast:
        await broadcast.publish(4)
    sender.model.step()
    async with stage.broadcast(sender, fence=2) as broadcast:
        await broadcast.publish(4)
    await receiver.worker.wait_for_version(2, 4, timeout=5)
    assert receiver.refits == 2
    assert torch.equal(receiver.model.weights["embed.weight"], sender.model.weights["embed.weight"])


async def test_no_sample_starts_while_a_worker_drains(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        await broadcast.publish(0)
        await receiver.worker.wait_for_version(1, 0, timeout=5)
        receiver.idle.clear()
        receiver.asked_to_drain.clear()
        broadcast.publish_in_background(1)
        await receiver.asked_to_drain.wait()
        with pytest.raises(TimeoutError, match=r"version 0 of fence 1 had not arrived after 0\.05 s"):
            await receiver.worker.wait_for_version(1, 0, timeout=0.05)
        receiver.idle.set()
        await receiver.worker.wait_for_version(1, 0, timeout=5)
        report = await broadcast.wait_current()
        assert report is not None
        assert report.version == 1


async def test_worker_past_its_deadline_names_the_phase(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("rollout-0", sender, timeout=0.1)
    receiver.idle.clear()
    async with stage.broadcast(sender) as broadcast:
        with pytest.raises(RefitFailed, match=r"not done within 0\.1 s: still waiting for running samples"):
            await broadcast.publish(0)


async def test_wait_current_raises_and_returns_the_report_once(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        assert await broadcast.wait_current() is None
        broadcast.publish_in_background(0)
        with pytest.raises(RuntimeError, match="version 1 cannot be published before"):
            broadcast.publish_in_background(1)
        report = await broadcast.wait_current()
        assert report is not None
        figures = report.metrics()
        assert (figures["weights/version"], figures["refit/workers"]) == (0, 1)
        assert await broadcast.wait_current() is None

        def fail() -> None:
            raise RuntimeError("no memory")

        receiver.before_copy = fail
        broadcast.publish_in_background(1)
        with pytest.raises(RefitFailed, match="RuntimeError: no memory"):
            await broadcast.wait_current()
        receiver.before_copy = lambda: None
        await broadcast.publish(2)
        report = await broadcast.wait_current()
        assert report is not None
        assert report.version == 2


async def test_metrics_count_workers_that_acknowledged_after_the_quorum(stage: Any) -> None:
    sender = stage.sender()
    stage.receiver("rollout-0", sender)
    late = stage.receiver("rollout-1", sender)
    late.idle.clear()
    async with stage.broadcast(sender, min_replicas=1, replicas=2) as broadcast:
        report = await broadcast.publish(0)
        assert report.metrics()["refit/workers"] == 1
        late.idle.set()
        await late.worker.wait_for_version(1, 0, timeout=5)
        # The worker acknowledges after its commit.
        for _ in range(500):
            if report.metrics()["refit/workers"] == 2:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"the late worker is not counted: {report.metrics()}")


async def test_trainer_errors_propagate_and_a_silent_trainer_times_out(stage: Any) -> None:
    async def broken(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        raise ConnectionError("the trainer is away")

    async def silent(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        await asyncio.Event().wait()
        raise AssertionError

    for publish, error, words in (
        (broken, ConnectionError, "the trainer is away"),
        (silent, RefitFailed, r"the trainer had not published version 0 after 0\.1 s"),
    ):
        async with RefitCoordinator(
            stage.bus, publish, fence=1, min_replicas=1, replicas=1, timeout=0.1
        ) as broadcast:
            broadcast.publish_in_background(0)
            with pytest.raises(error, match=words):
                await broadcast.wait_current()


async def test_exit_cancels_the_publication_in_progress(stage: Any) -> None:
    before = asyncio.all_tasks()
    async with stage.broadcast(stage.sender(), timeout=600) as broadcast:
        broadcast.publish_in_background(0)
        await asyncio.sleep(0.05)
    assert asyncio.all_tasks() == before
    with pytest.raises(RuntimeError, match="context"):
        await stage.broadcast(stage.sender()).publish(0)


async def test_acknowledgements_of_an_older_fence_are_ignored(stage: Any) -> None:
    sender = stage.sender()
    async with stage.broadcast(sender, fence=2) as broadcast:
        stale = refit_pb2.RefitAcknowledgement(worker="old", error="broken")
        stale.weights.fence = 1
        await stage.bus.publish("refit-acks", stale.SerializeToString(), "stale")
        await stage.bus.publish("refit-acks", b"\xff nonsense", "nonsense")
        stage.receiver("rollout-0", sender)
        await broadcast.publish(0)
        assert broadcast.quarantined == frozenset()


async def test_background_failure_is_reported(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("rollout-0", sender)
    async with stage.broadcast(sender) as broadcast:
        await broadcast.publish(0)
        broadcast.publish_in_background(1)
        await broadcast.wait_current()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await broadcast.wait_for_failure()

        def fail() -> None:
            raise RuntimeError("no memory")

        receiver.before_copy = fail
        broadcast.publish_in_background(2)
        with pytest.raises(RefitFailed, match="RuntimeError: no memory"):
            async with asyncio.timeout(10):
                await broadcast.wait_for_failure()


async def test_lost_announcement_is_repeated(stage: Any) -> None:
    """Repetition covers a worker that joins after the loss and a publication that no receiver has seen."""
    sender = stage.sender()
    async with stage.broadcast(sender) as broadcast:
        broadcast.publish_in_background(0)
        async with asyncio.timeout(10):
            while not sender.published:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        await stage.bus.simulate_data_loss()
        stage.receiver("early", sender)
        await broadcast.wait_current()
        await stage.bus.simulate_data_loss()
        late = stage.receiver("late", sender)
        await late.worker.wait_for_version(1, 0, timeout=5)
        assert sender.published == [0], "the trainer was not asked again"


async def test_gone_worker_is_removed(stage: Any) -> None:
    """Names are not reused: the names of all failed workers would accumulate."""
    sender = stage.sender()
    stage.receiver("rollout-12", sender)
    async with stage.broadcast(sender) as broadcast:
        await broadcast.publish(0)
        failed = refit_pb2.RefitAcknowledgement(worker="rollout-7", error="no memory")
        failed.weights.fence = 1
        await stage.bus.publish("refit-acks", failed.SerializeToString(), "failed")
        counts = []
        for version in range(1, 7):
            counts.append((await broadcast.publish(version)).metrics()["refit/quarantined_workers"])
        assert max(counts) == 1 and counts[-2:] == [0, 0]
