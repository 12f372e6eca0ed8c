"""Every family on megatron-core computes what the torch backend does: weight mapping, rotary embedding,
windows and mixtures match transformers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.training import Backend, Trainer
from kubealign_services.training.backends import create_backend
from kubealign_services.training.contract import Head
from support.batches import random_batch
from support.megatron_models import FAMILIES, config_of, save_model

pytestmark = pytest.mark.timeout(120)

_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 16}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}),
    "tied": ("qwen3", {"tie_word_embeddings": True}),
    "weights that do not sum to 1": ("qwen3_moe", {"norm_topk_prob": False}),
    "llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **_LLAMA3}}),
    "yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **_YARN}}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Restore threads and destroy process groups."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("name", CASES)
def test_a_family_computes_what_the_torch_backend_does(name: str, tmp_path: Path) -> None:
    family, changes = CASES[name]
    save_model(tmp_path, config_of(family, **changes))
    batch = random_batch([4, 1, 19, 7], list(range(4)), seed=1)
    batch.tokens = torch.randint(0, 37, batch.tokens.shape, dtype=batch.tokens.dtype)
    outputs = frozenset({"logprobs", "entropy", "collision"})
    actual, expected = (
        create_backend(tmp_path, Head.LANGUAGE_MODEL, Trainer(backend=backend), 1).forward(batch, outputs)
        for backend in (Backend(megatron=MegatronBackendSpec()), Backend(torch={}))
    )
    for column in outputs:
        torch.testing.assert_close(actual[column], expected[column], rtol=1e-5, atol=1e-5)
    assert float(expected["logprobs"].abs().max()) > 1
