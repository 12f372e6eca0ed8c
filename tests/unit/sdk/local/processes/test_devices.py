"""GPUs of a machine, and their division among processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.local.processes.devices import (
    DeviceRequest,
    assign_devices,
    device_environment,
    divide_devices,
    parse_device_list,
    visible_devices,
)

TWO_GPUS = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-0f5ba0d6-d33d-2b2c-524d-9e3d8d2b8a78)
"""
SLICES = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-4fa4b4a2)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaa)
  MIG 2g.10gb     Device  1: (UUID: MIG-bbbb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-4fa4b4a3)
"""


def test_devices_are_read_from_the_list() -> None:
    assert parse_device_list(TWO_GPUS) == ("0", "1")
    assert parse_device_list(SLICES) == ("MIG-aaaa", "MIG-bbbb", "1")
    assert parse_device_list("No devices were found\n") == ()


@pytest.mark.parametrize(
    ("value", "devices"),
    [("0,1", ("0", "1")), (" 2 ", ("2",)), ("", ()), ("-1", ()), ("0,-1,1", ("0",)), ("GPU-a", ("GPU-a",))],
)
def test_the_variable_restricts_the_devices_as_cuda_does(value: str, devices: tuple[str, ...]) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}) == devices


def test_the_devices_of_a_pod_are_divided_equally() -> None:
    assert divide_devices("01234567", 4) == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    assert divide_devices("012", 2) == [("0",), ("1",)]
    assert divide_devices("01", 3) == [("0",), ("1",), ("0",)]
    assert divide_devices("", 2) == [(), ()]


def request(name: str, processes: int, devices: int = 1) -> DeviceRequest:
    return DeviceRequest(tuple(f"{name}-{index}" for index in range(processes)), devices)


def test_every_process_has_a_device_of_its_own_where_there_are_enough() -> None:
    names = ("reference", "rollout-0", "rollout-1")
    requests = [request("trainer", 2), *(request(name, 1) for name in names)]
    assigned = assign_devices([str(index) for index in range(8)], requests)
    assert list(assigned.values()) == [("0",), ("1",), ("2",), ("3",), ("4",)]


def test_an_engine_with_several_devices_takes_the_least_used_ones() -> None:
    assigned = assign_devices("0123", [request("trainer", 2), request("rollout", 1, devices=2)])
    assert assigned["rollout-0"] == ("2", "3")
    assert assign_devices("01", [request("rollout", 1, devices=8)])["rollout-0"] == ("0", "1")


def test_no_devices() -> None:
    assert assign_devices((), [request("trainer", 2)]) == {}
    assert device_environment(()) == {}
    assert device_environment(("2", "3")) == {"CUDA_VISIBLE_DEVICES": "2,3"}


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=6))
def test_devices_are_shared_evenly_and_never_by_two_ranks_of_a_group(
    count: int, groups: list[tuple[int, int]]
) -> None:
    devices = [str(index) for index in range(count)]
    requests = [request(f"g{index}", ranks, each) for index, (ranks, each) in enumerate(groups)]
    assigned = assign_devices(devices, requests)
    for one in requests:
        own = [device for name in one.processes for device in assigned[name]]
        if len(own) <= count:
            assert len(set(own)) == len(own)
    single = [one for one in requests if one.devices == 1]
    users = [sum(device in mine for mine in assign_devices(devices, single).values()) for device in devices]
    assert max(users) - min(users) <= 1
    # Later requests, such as an added rollout worker's, change nothing for earlier ones.
    assert assign_devices(devices, requests[:-1]).items() <= assigned.items()
