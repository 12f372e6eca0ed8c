"""Relays in separate processes: bytes sent by the sender, and receivers whose source dies."""

import signal
from pathlib import Path

import pytest

from kubealign.spec.sections.rollout import WeightEncoding
from support.weights_line import weights_line

pytestmark = pytest.mark.timeout(150)

# Sixteen pieces of 1.5 MiB.
SIZE = 24 << 20


def test_eight_receivers_cost_the_sender_two_streams(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("position", "changes_sent", "weights_sent"),
    [
        # No receiver has the weights yet, and the newcomer without the delta cannot relay it.
        (0, 1, 1),
        # The newcomer takes the only place below a delta receiver; the next one gets the delta from the
        # sender.
        (1, 2, 0),
        (2, 2, 0),
        (3, 1, 0),
    ],
)
def test_deltas_are_relayed_and_a_newcomer_gets_the_full_weights(
    tmp_path: Path, position: int, changes_sent: int, weights_sent: int
) -> None:
    """Check the sent bytes for each position of the newcomer in the order of the requests."""
    with weights_line(tmp_path, SIZE, fan_out=1, encoding=WeightEncoding.DELTA) as line:
        old = line.receivers(3)
        announcement, digest = line.publish(0)
        for receiver in old:
            receiver.take(announcement)
        assert [receiver.taken() for receiver in old] == [(digest, "stream", SIZE, 0)] * 3
        line.spent()
        newcomer = line.receiver()
        announcement, digest = line.publish(1)
        for receiver in [*old[:position], newcomer, *old[position:]]:
            receiver.take(announcement)
            receiver.begun()
        assert newcomer.taken() == (digest, "stream", SIZE, 0)
        changes = {receiver.taken() for receiver in old}
        assert [(answer[0], answer[3]) for answer in changes] == [(digest, 1)]
        size = changes.pop()[2]
        assert size < 0.05 * SIZE
        sent, _ = line.spent()
        assert sent == changes_sent * size + weights_sent * SIZE


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_relay_that_dies_costs_no_receiver_the_version(tmp_path: Path, end: signal.Signals) -> None:
    with weights_line(tmp_path, SIZE, fan_out=1, timeout=16.0) as line:
        doomed = line.receiver(end=end)
        others = line.receivers(3)
        announcement, digest = line.publish(0)
        # The sender streams only to the first receiver; all others depend on that relay.
        doomed.take(announcement)
        assert doomed.begun() == line.address
        for receiver in others:
            receiver.take(announcement)
        assert [receiver.taken()[0] for receiver in others] == [digest] * 3
        if end is signal.SIGKILL:
            doomed.process.join(20)
            assert doomed.process.exitcode == -signal.SIGKILL
        assert doomed.address in {address for receiver in others for address in receiver.heard}
        # The bytes that the orphaned receiver had verified were not sent again.
        sent, _ = line.spent()
        assert SIZE < sent <= 2 * SIZE
        # The next version is distributed without the dead relay.
        announcement, digest = line.publish(1)
        for receiver in others:
            receiver.take(announcement)
        assert [receiver.taken()[0] for receiver in others] == [digest] * 3
        assert line.spent()[0] == SIZE
