"""Quorum decisions: the table of the module, line by line."""

import pytest

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.weights.announce.quorum import Quorum, QuorumVerdict

pytestmark = pytest.mark.timeout(30)

WEIGHTS = batch_pb2.WeightsId(fence=1, version=4, digest="d")


def answer(worker: str, error: str = "", version: int = 4) -> refit_pb2.RefitAcknowledgement:
    weights = batch_pb2.WeightsId(fence=1, version=version, digest="d")
    return refit_pb2.RefitAcknowledgement(worker=worker, weights=weights, error=error)


@pytest.mark.parametrize(
    ("committed", "failed", "min_replicas", "replicas", "known", "passed", "verdict"),
    [
        # Enough acknowledgements, regardless of the others.
        ("ab", "", 2, 3, "", False, QuorumVerdict.REACHED),
        ("ab", "c", 2, 3, "", True, QuorumVerdict.REACHED),
        # Not enough yet, but the remaining workers could suffice.
        ("a", "", 2, 3, "", False, QuorumVerdict.WAITING),
        ("a", "b", 2, 3, "", False, QuorumVerdict.WAITING),
        ("", "", 1, 1, "", False, QuorumVerdict.WAITING),
        # A worker beyond the replicas that are meant to run counts as well.
        ("", "a", 1, 1, "b", False, QuorumVerdict.WAITING),
        # The deadline decides.
        ("a", "", 2, 3, "", True, QuorumVerdict.LOST),
        ("", "", 1, 1, "", True, QuorumVerdict.LOST),
        # Too many have failed: 3 - 2 < 2, and 1 - 1 < 1.
        ("", "bc", 2, 3, "", False, QuorumVerdict.LOST),
        ("", "a", 1, 1, "a", False, QuorumVerdict.LOST),
    ],
)
def test_verdicts(
    committed: str,
    failed: str,
    min_replicas: int,
    replicas: int,
    known: str,
    passed: bool,
    verdict: QuorumVerdict,
) -> None:
    quorum = Quorum(WEIGHTS, min_replicas, replicas, frozenset(known))
    for worker in committed:
        quorum.add_ack(answer(worker))
    for worker in failed:
        quorum.add_ack(answer(worker, "broken"))
    assert quorum.verdict(passed) is verdict


def test_last_acknowledgement_of_a_worker_counts() -> None:
    quorum = Quorum(WEIGHTS, 1, 1)
    assert quorum.add_ack(answer("a", "broken"))
    assert quorum.add_ack(answer("a"))
    assert (set(quorum.committed), set(quorum.failed)) == ({"a"}, set())
    assert quorum.add_ack(answer("a", "broken again"))
    assert quorum.verdict(False) is QuorumVerdict.LOST


def test_acknowledgements_of_other_weights_do_not_count() -> None:
    quorum = Quorum(WEIGHTS, 1, 1)
    assert not quorum.add_ack(answer("a", version=3))
    assert quorum.verdict(False) is QuorumVerdict.WAITING


def test_failure_reasons_name_every_worker() -> None:
    quorum = Quorum(WEIGHTS, 2, 3, known_workers=frozenset("bc"))
    assert Quorum(WEIGHTS, 1, 1).failure_reasons(5) == "no worker answered within 5 s"
    quorum.add_ack(answer("b", "no room"))
    assert quorum.absent == {"c"}
    assert quorum.failure_reasons(5) == "b: no room; c: no answer within 5 s"
