"""One accelerator, two tenants: who computes, who lives on it, and what is said when it stays taken."""

import threading

import pytest

from kubealign_services.residence.lease import Lease, LeaseTimeout

pytestmark = pytest.mark.timeout(30)


class Told:
    """A tenant that notes what it is asked, and fails as often as it is told to."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events
        self.failures = 0

    def leave(self) -> None:
        self._note("leaves")

    def enter(self) -> None:
        self._note("enters")

    def _note(self, what: str) -> None:
        self._events.append(f"{self._name} {what}")
        if self.failures:
            self.failures -= 1
            raise MemoryError(f"no room: {self._name} {what}")


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def tenants(events: list[str]) -> dict[str, Told]:
    return {name: Told(name, events) for name in ("training", "generation")}


@pytest.fixture
def lease(tenants: dict[str, Told]) -> Lease:
    return Lease(tenants, timeout=10.0)


def test_who_comes_back_moves_nothing_and_who_comes_anew_is_made_room_for(
    lease: Lease, events: list[str]
) -> None:
    for tenant in ("training", "training", "generation", "generation", "training"):
        with lease.held(tenant, "a step"):
            events.append(f"{lease.holder} computes")
            assert lease.resident == tenant
        assert lease.holder is None
        assert lease.resident == tenant, "it stays until another one comes"
    assert events == [
        "training enters",
        "training computes",
        "training computes",
        "training leaves",
        "generation enters",
        "generation computes",
        "generation computes",
        "generation leaves",
        "training enters",
        "training computes",
    ]


def test_nobody_is_moved_while_another_one_computes_and_they_come_in_their_order(
    lease: Lease, events: list[str]
) -> None:
    lease.take("generation", "samples")
    waiting = []
    for number in range(3):
        thread = threading.Thread(target=_compute, args=(lease, "training", str(number), events))
        thread.start()
        waiting.append(thread)
        while lease.queued <= number:
            # The order of asking is what is tested, so each has to stand in the queue first.
            threading.Event().wait(0.001)
    again = threading.Thread(target=_compute, args=(lease, "generation", "again", events))
    again.start()
    while lease.queued < 4:
        threading.Event().wait(0.001)
    assert events == ["generation enters"], "it still holds"
    lease.release("generation")
    for thread in (*waiting, again):
        thread.join(10)
    assert events == [
        "generation enters",
        "generation leaves",
        "training enters",
        "training 0",
        "training 1",
        "training 2",
        "training leaves",
        "generation enters",
        "generation again",
    ]


def _compute(lease: Lease, tenant: str, what: str, events: list[str]) -> None:
    with lease.held(tenant, what):
        events.append(f"{tenant} {what}")


def test_a_wait_has_a_deadline_and_says_who_held_it_and_for_what(tenants: dict[str, Told]) -> None:
    # Read as generation begins to wait and has it, as training begins to wait, and twice as it gives up.
    clock = iter([100.0, 100.0, 102.5, 108.0, 108.0])
    lease = Lease(tenants, timeout=5.0, clock=lambda: next(clock))
    lease.take("generation", "samples")
    with pytest.raises(LeaseTimeout) as told:
        lease.take("training", "the command TrainStep")
    assert str(told.value) == (
        "training waited 5 s for the accelerator, for the command TrainStep: "
        "generation has held it for 8.0 s, for samples"
    )
    assert lease.holder == "generation"


def test_who_gave_up_waiting_stands_in_nobodys_way(tenants: dict[str, Told]) -> None:
    lease = Lease(tenants, timeout=0.05)
    lease.take("generation", "samples")
    with pytest.raises(LeaseTimeout, match="generation has held it"):
        lease.take("training", "a step")
    assert lease.queued == 0
    lease.release("generation")
    with lease.held("training", "a step"):
        assert lease.resident == "training"


def test_a_tenant_that_does_not_fit_leaves_the_lease_free_and_is_asked_to_leave_before_the_next(
    lease: Lease, tenants: dict[str, Told], events: list[str]
) -> None:
    tenants["training"].failures = 1
    with pytest.raises(MemoryError, match="training enters"):
        lease.take("training", "a step")
    assert lease.holder is None
    with lease.held("training", "a step"):
        pass
    assert events == ["training enters", "training enters"], "half entered is not entered"
    events.clear()
    tenants["training"].failures = 1
    with pytest.raises(MemoryError, match="training leaves"):
        lease.take("generation", "samples")
    with lease.held("training", "a step"):
        pass
    assert events == ["training leaves", "training enters"], "half left is not there"


def test_who_does_not_hold_it_cannot_let_go_of_it(lease: Lease) -> None:
    with pytest.raises(RuntimeError, match="that nobody holds"):
        lease.release("training")
    lease.take("generation", "samples")
    with pytest.raises(RuntimeError, match="that generation holds"):
        lease.release("training")
    with pytest.raises(KeyError):
        lease.take("inference", "a step")
