"""The accelerator lock with two tenants: order, residency, and timeout errors."""

import threading

import pytest

from kubealign_services.runtime.offload.accelerator_lock import AcceleratorLock, AcceleratorLockTimeout

pytestmark = pytest.mark.timeout(30)


class RecordingTenant:
    """A tenant that records its calls, and fails as often as instructed."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events
        self.failures = 0

    def offload(self) -> None:
        self._note("leaves")

    def reload(self) -> None:
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
def tenants(events: list[str]) -> dict[str, RecordingTenant]:
    return {name: RecordingTenant(name, events) for name in ("training", "generation")}


@pytest.fixture
def lease(tenants: dict[str, RecordingTenant]) -> AcceleratorLock:
    return AcceleratorLock(tenants, timeout=10.0)


def test_resident_tenant_moves_nothing_and_a_new_one_evicts_it(
    lease: AcceleratorLock, events: list[str]
) -> None:
    for tenant in ("training", "training", "generation", "generation", "training"):
        with lease.hold(tenant, "a step"):
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


def test_tenants_wait_their_turn_in_order(lease: AcceleratorLock, events: list[str]) -> None:
    lease.acquire("generation", "samples")
    waiting = []
    for number in range(3):
        thread = threading.Thread(target=_compute, args=(lease, "training", str(number), events))
        thread.start()
        waiting.append(thread)
        while lease.queue_length <= number:
            # The request order is tested, so each waiter must be queued before the next starts.
            threading.Event().wait(0.001)
    again = threading.Thread(target=_compute, args=(lease, "generation", "again", events))
    again.start()
    while lease.queue_length < 4:
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


def _compute(lease: AcceleratorLock, tenant: str, what: str, events: list[str]) -> None:
    with lease.hold(tenant, what):
        events.append(f"{tenant} {what}")


def test_timeout_names_the_holder_and_its_purpose(tenants: dict[str, RecordingTenant]) -> None:
    # Clock reads: generation starts waiting and acquires, training starts waiting, and two when it times out.
    clock = iter([100.0, 100.0, 102.5, 108.0, 108.0])
    lease = AcceleratorLock(tenants, timeout=5.0, clock=lambda: next(clock))
    lease.acquire("generation", "samples")
    with pytest.raises(AcceleratorLockTimeout) as error:
        lease.acquire("training", "the command TrainStep")
    assert str(error.value) == (
        "training waited 5 s for the accelerator, for the command TrainStep: "
        "generation has held it for 8.0 s, for samples"
    )
    assert lease.holder == "generation"


def test_timed_out_waiter_blocks_no_other(tenants: dict[str, RecordingTenant]) -> None:
    lease = AcceleratorLock(tenants, timeout=0.05)
    lease.acquire("generation", "samples")
    with pytest.raises(AcceleratorLockTimeout, match="generation has held it"):
        lease.acquire("training", "a step")
    assert lease.queue_length == 0
    lease.release("generation")
    with lease.hold("training", "a step"):
        assert lease.resident == "training"


def test_failed_reload_releases_the_lock_and_offloads_before_the_next(
    lease: AcceleratorLock, tenants: dict[str, RecordingTenant], events: list[str]
) -> None:
    tenants["training"].failures = 1
    with pytest.raises(MemoryError, match="training enters"):
        lease.acquire("training", "a step")
    assert lease.holder is None
    with lease.hold("training", "a step"):
        pass
    assert events == ["training enters", "training enters"], "half entered is not entered"
    events.clear()
    tenants["training"].failures = 1
    with pytest.raises(MemoryError, match="training leaves"):
        lease.acquire("generation", "samples")
    with lease.hold("training", "a step"):
        pass
    assert events == ["training leaves", "training enters"], "half left is not there"


def test_release_by_another_tenant_is_refused(lease: AcceleratorLock) -> None:
    with pytest.raises(RuntimeError, match="held by no tenant"):
        lease.release("training")
    lease.acquire("generation", "samples")
    with pytest.raises(RuntimeError, match="held by generation"):
        lease.release("training")
    with pytest.raises(KeyError):
        lease.acquire("inference", "a step")
