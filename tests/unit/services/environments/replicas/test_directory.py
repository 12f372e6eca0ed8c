"""Choice among environment workers by their announcements."""

import pytest

from kubealign.v1.environment_pb2 import EnvironmentWorkerState
from kubealign_services.environments.replicas.directory import EXPIRY_SECONDS, ReplicaDirectory


def state(name: str, sessions: int = 0, capacity: int = 4, **fields: object) -> EnvironmentWorkerState:
    values = {"worker": name, "address": f"{name}:1", "incarnation": "first", "sequence": 1, **fields}
    return EnvironmentWorkerState(sessions=sessions, capacity=capacity, **values)  # type: ignore[arg-type]


def directory(*states: EnvironmentWorkerState) -> ReplicaDirectory:
    created = ReplicaDirectory()
    for each in states:
        assert created.add(each, age=0.0, now=0.0)
    return created


def choices(workers: ReplicaDirectory, count: int, now: float = 1.0) -> list[str | None]:
    chosen = [workers.choose(now) for _ in range(count)]
    return [None if replica is None else replica.name for replica in chosen]


def test_the_smallest_share_of_the_capacity_is_chosen_and_equal_ones_take_turns() -> None:
    assert choices(directory(state("a", 2), state("b", 1)), 3) == ["b", "b", "a"]
    assert choices(directory(state("a", 2, capacity=8), state("b", 1, capacity=2)), 2) == ["a", "a"]
    assert sorted(filter(None, choices(directory(state("a"), state("b"), state("c")), 3))) == ["a", "b", "c"]


def test_full_workers_are_not_chosen_until_they_announce_room() -> None:
    workers = directory(state("a", 3), state("b", 4))
    assert choices(workers, 2) == ["a", None]
    assert workers.add(state("b", 2, sequence=2), age=0.0, now=1.0)
    assert choices(workers, 3) == ["b", "b", None]
    assert workers.has_live(1.0)


def test_an_announcement_replaces_older_ones_of_the_same_start_only() -> None:
    workers = directory(state("a", 4, sequence=5))
    assert not workers.add(state("a", 0, sequence=4), age=0.0, now=1.0)
    assert choices(workers, 1) == [None]
    assert workers.add(state("a", 0, sequence=1, incarnation="second"), age=0.0, now=1.0)
    assert choices(workers, 1) == ["a"]


@pytest.mark.parametrize("fault", ["is_lost", "is_full"])
def test_a_worker_that_failed_is_not_chosen_before_its_next_announcement(fault: str) -> None:
    workers = directory(state("a"))
    replica = workers.choose(1.0)
    assert replica is not None
    setattr(replica, fault, True)
    assert choices(workers, 1) == [None]
    assert workers.has_live(1.0) is (fault == "is_full")
    workers.add(state("a", sequence=2), age=0.0, now=1.0)
    assert choices(workers, 1) == ["a"]


def test_announcements_expire_and_leaving_workers_are_not_live() -> None:
    workers = ReplicaDirectory()
    assert not workers.add(state("old"), age=EXPIRY_SECONDS, now=100.0)
    assert workers.add(state("a"), age=2.0, now=100.0)
    assert workers.add(state("b", leaving=True), age=0.0, now=100.0)
    assert choices(workers, 1, 100.0 + EXPIRY_SECONDS - 2.1) == ["a"]
    assert choices(workers, 1, 100.0 + EXPIRY_SECONDS - 2.0) == [None]
    assert not workers.has_live(100.0 + EXPIRY_SECONDS - 2.0)
    assert workers.describe(105.0) == "a does not answer, b is leaving"
    assert [replica.name for replica in workers.forget_expired(105.0)] == ["a"]
    assert workers.describe(105.0) == "b is leaving"
    assert ReplicaDirectory().describe(0.0) == "none has announced itself"
