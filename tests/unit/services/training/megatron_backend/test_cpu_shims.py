"""Replacement of CUDA functions for megatron-core on a CPU."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.transformer.moe import token_dispatcher

from kubealign_services.training.megatron_backend.cpu_shims import megatron_cpu_shims

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the shims do nothing with CUDA")


def attributes() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in (torch.cuda, torch.Tensor, dist, token_dispatcher)]


def test_cuda_is_the_cpu_within_the_block() -> None:
    tensor = torch.ones(2)
    with megatron_cpu_shims():
        assert tensor.cuda() is tensor
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.cuda.current_device() == torch.device("cpu")
        assert torch.cuda.current_stream() is torch.cuda.current_stream().record_event()
        torch.cuda.synchronize()
    with pytest.raises((RuntimeError, AssertionError)):
        tensor.cuda()


def test_originals_are_restored_after_nested_blocks_and_after_an_error() -> None:
    original = attributes()
    with megatron_cpu_shims():
        outer = attributes()
        with pytest.raises(ValueError, match="x"), megatron_cpu_shims():
            raise ValueError("x")
        assert attributes() == outer
    assert attributes() == original
