"""The collective transport over gloo, between processes: a full group, a late member, and a member that dies
during a transfer."""

import signal
from pathlib import Path

import pytest

from kubealign.spec.sections.rollout import WeightTransport
from support.weights_line import Receiver, WeightsLine, weights_line

pytestmark = pytest.mark.timeout(150)

# Three buckets of 16 MiB.
SIZE = 48 << 20


def taken(line: WeightsLine, version: int, receivers: list[Receiver]) -> list[str]:
    """Return the transports by which a version arrived, once all receivers have it."""
    announcement, digest = line.publish(version)
    for receiver in receivers:
        receiver.take(announcement)
    answers = [receiver.taken() for receiver in receivers]
    assert [(answer[0], answer[2]) for answer in answers] == [(digest, SIZE)] * len(receivers)
    return [answer[1] for answer in answers]


def test_all_take_part_and_a_late_receiver_streams_once(tmp_path: Path) -> None:
    with weights_line(tmp_path, SIZE, transport=WeightTransport.COLLECTIVE, expected=3) as line:
        receivers = line.receivers(3)
        for version in range(2):
            assert taken(line, version, receivers) == ["collective"] * 3
        assert line.spent()[0] == 0
        late = line.receiver()
        announcement, digest = line.publish(2)
        for receiver in receivers:
            receiver.take(announcement)
        assert [receiver.taken()[1] for receiver in receivers] == ["collective"] * 3
        late.take(announcement)
        assert late.taken()[:2] == (digest, "stream")
        assert line.spent()[0] == SIZE
        # The group is created again, with the new member.
        assert taken(line, 3, [*receivers, late]) == ["collective"] * 4
        assert line.spent()[0] == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_others_stream_after_a_member_dies_and_broadcast_again(tmp_path: Path, end: signal.Signals) -> None:
    with weights_line(tmp_path, SIZE, transport=WeightTransport.COLLECTIVE, expected=3, timeout=12.0) as line:
        doomed = line.receiver(end=end)
        others = line.receivers(2)
        announcement, digest = line.publish(0)
        for receiver in (doomed, *others):
            receiver.take(announcement)
        answers = [receiver.taken() for receiver in others]
        assert [answer[0] for answer in answers] == [digest] * 2
        assert "stream" in [answer[1] for answer in answers]
        # The group forms without the third member after a wait.
        assert taken(line, 1, others) == ["collective"] * 2
        assert taken(line, 2, others) == ["collective"] * 2
