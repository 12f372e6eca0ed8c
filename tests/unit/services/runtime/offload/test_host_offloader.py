"""Offloading: the memory is freed and restored with its contents. On a CPU, whose memory stands in for the
accelerator's.
"""

import pytest
import torch
from torch import Tensor

from kubealign_services.runtime.offload.host_offloader import HostOffloader, NoOffload, make_offloader

pytestmark = pytest.mark.timeout(30)
CPU = torch.device("cpu")


@pytest.fixture
def tensors() -> list[Tensor]:
    return [torch.arange(6.0).reshape(2, 3), torch.tensor([7, 8]), torch.zeros(0)]


@pytest.fixture
def swap(tensors: list[Tensor]) -> HostOffloader:
    return HostOffloader(lambda: tensors, CPU)


def test_offload_and_reload_restore_every_bit(swap: HostOffloader, tensors: list[Tensor]) -> None:
    before = [tensor.clone() for tensor in tensors]
    swap.offload()
    assert swap.is_offloaded
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0, 0]
    swap.offload()
    swap.reload()
    swap.reload()
    assert not swap.is_offloaded
    assert all(now.equal(then) for now, then in zip(tensors, before, strict=True))


def test_shared_storages_stay_shared(tensors: list[Tensor]) -> None:
    full = torch.arange(8.0)
    part, tied = full[2:5], full.view(2, 4)
    swap = HostOffloader(lambda: [part, tied, full], CPU)
    swap.offload()
    swap.reload()
    assert part.tolist() == [2, 3, 4]
    part[0] = 20
    assert tied[0, 2] == 20


def test_unchanged_tensors_are_not_copied_again(swap: HostOffloader, tensors: list[Tensor]) -> None:
    swap.offload()
    swap.reload()
    tensors[0][0, 0] = 99
    swap.offload()
    swap.reload()
    assert tensors[0][0, 0] == 0, "nobody said that it had changed"
    tensors[0][0, 0] = 99
    swap.mark_changed()
    swap.offload()
    swap.reload()
    assert tensors[0][0, 0] == 99


def test_new_tensors_are_offloaded_and_host_buffers_reused(
    swap: HostOffloader, tensors: list[Tensor]
) -> None:
    swap.offload()
    first = swap._copies[0].data_ptr()
    swap.reload()
    tensors.append(torch.tensor([5.0]))
    swap.offload()
    assert tensors[-1].untyped_storage().nbytes() == 0
    assert swap._copies[0].data_ptr() == first
    swap.reload()
    assert tensors[-1].tolist() == [5]


def test_reload_empty_copies_nothing(swap: HostOffloader, tensors: list[Tensor]) -> None:
    swap.offload()
    swap.reload_empty()
    assert tensors[0].untyped_storage().nbytes() == 24
    tensors[0].fill_(3)
    tensors[1].fill_(4)
    swap.offload()
    swap.reload()
    assert tensors[0].eq(3).all(), "what came is what is copied"
    assert tensors[1].eq(4).all()


def test_optimiser_continues_unchanged() -> None:
    def trained(*, rests: bool) -> Tensor:
        torch.manual_seed(3)
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

        def held() -> list[Tensor]:
            moments = [m for state in optimizer.state.values() for m in state.values()]
            return [*layer.parameters(), *moments]

        swap = HostOffloader(held, CPU)
        for _ in range(4):
            if rests:
                swap.offload()
                swap.reload()
            swap.mark_changed()
            optimizer.zero_grad()
            layer(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        return layer.weight.detach()

    assert trained(rests=True).equal(trained(rests=False))


def test_cpu_tensors_stay(tensors: list[Tensor]) -> None:
    stays = make_offloader(lambda: tensors, CPU)
    assert isinstance(stays, NoOffload)
    stays.offload()
    assert tensors[0].sum() == 15
    stays.mark_changed()
    stays.reload()
    stays.reload_empty()
    assert tensors[0].sum() == 15
