"""Receivers that hand on, in processes of their own: what the sender streams, and what becomes of those whose
source dies."""

import signal
from pathlib import Path

import pytest

from kubealign.spec.rollout import Encoding
from support.weights_line import weights_line

pytestmark = pytest.mark.timeout(150)

# Sixteen pieces of 1.5 MiB.
SIZE = 24 << 20


def test_eight_receivers_cost_the_sender_two(tmp_path: Path) -> None:
    with weights_line(tmp_path, SIZE, fan_out=2) as line:
        receivers = line.receivers(8)
        for version in range(3):
            announcement, digest = line.publish(version)
            for receiver in receivers:
                receiver.take(announcement)
            answers = [receiver.taken() for receiver in receivers]
            assert answers == [(digest, "stream", SIZE, 0)] * 8
            sources = [receiver.heard for receiver in receivers]
            assert all(len(heard) == 1 for heard in sources)
            streamed = [heard[0] for heard in sources]
            assert streamed.count(line.address) == 2
            assert all(streamed.count(address) <= 2 for address in streamed)
            sent, _ = line.spent()
            assert sent == 2 * SIZE


def test_changes_are_handed_on_as_changes_and_a_newcomer_gets_it_all(tmp_path: Path) -> None:
    with weights_line(tmp_path, SIZE, fan_out=1, encoding=Encoding.DELTA) as line:
        receivers = line.receivers(3)
        announcement, digest = line.publish(0)
        for receiver in receivers:
            receiver.take(announcement)
        assert [receiver.taken() for receiver in receivers] == [(digest, "stream", SIZE, 0)] * 3
        line.spent()
        receivers.append(line.receiver())
        announcement, digest = line.publish(1)
        for receiver in receivers:
            receiver.take(announcement)
        answers = [receiver.taken() for receiver in receivers]
        assert [answer[0] for answer in answers] == [digest] * 4
        assert [answer[3] for answer in answers] == [1, 1, 1, 0]
        changes = answers[0][2]
        assert changes < 0.05 * SIZE
        # One stream of changes; of the weights themselves one, where nobody who hands on had room.
        sent, _ = line.spent()
        assert sent in (changes, changes + SIZE)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_hands_on_and_ends_in_the_middle_costs_nobody_the_version(
    tmp_path: Path, end: signal.Signals
) -> None:
    with weights_line(tmp_path, SIZE, fan_out=1, timeout=16.0) as line:
        doomed = line.receiver(end=end)
        others = line.receivers(3)
        announcement, digest = line.publish(0)
        # The first to ask is the only one whom the sender streams to: all others depend on it.
        doomed.take(announcement)
        assert doomed.begun() == line.address
        for receiver in others:
            receiver.take(announcement)
        assert [receiver.taken()[0] for receiver in others] == [digest] * 3
        if end is signal.SIGKILL:
            doomed.process.join(20)
            assert doomed.process.exitcode == -signal.SIGKILL
        assert doomed.address in {address for receiver in others for address in receiver.heard}
        # What the orphan had was not sent again.
        sent, _ = line.spent()
        assert SIZE < sent <= 2 * SIZE
        # The next version finds its way without the one that is no more.
        announcement, digest = line.publish(1)
        for receiver in others:
            receiver.take(announcement)
        assert [receiver.taken()[0] for receiver in others] == [digest] * 3
        assert line.spent()[0] == SIZE
