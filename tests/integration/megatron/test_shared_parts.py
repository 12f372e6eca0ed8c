"""Two ranks with a divided vocabulary, and two ranks with a divided pack, compared with one rank in
float64.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kubealign_services.training.megatron_backend.cpu_shims import megatron_cpu_shims
from kubealign_services.training.megatron_backend.model.vocab_parallel_logprobs import (
    VocabularyShare,
    vocab_parallel_candidate_logprobs,
    vocab_parallel_collision,
    vocab_parallel_token_logprobs,
)
from kubealign_services.training.megatron_backend.parallel.context_attention import (
    context_attention,
    context_shares,
    plan_context,
)
from support.forked_ranks import RankFactory
from support.free_address import free_address

pytestmark = pytest.mark.timeout(240)

VOCABULARY, ROWS, PLACES = 11, 6, 9
# Three sequences and two tokens of padding: 24 is a multiple of two chunks for each of two ranks.
SEAMS, LENGTH, WINDOW = [0, 7, 8, 22, 24], 24, 5


def head() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden": torch.randn(PLACES, 5, dtype=torch.float64, generator=generator),
        "weight": torch.randn(2 * ROWS, 5, dtype=torch.float64, generator=generator),
        "targets": torch.randint(0, VOCABULARY, (PLACES,), generator=generator),
        "candidates": torch.randint(0, VOCABULARY, (PLACES, 3), generator=generator),
        "back": torch.randn(PLACES, 5, dtype=torch.float64, generator=generator),
    }


def pack() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return query [T, 4, 3], key and value [T, 2, 3], and the gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((LENGTH, 4, 3), (LENGTH, 2, 3), (LENGTH, 2, 3), (LENGTH, 4, 3))
    q, k, v, back = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return q, k, v, back


def share_parts(rank: int, address: str, work: Path) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=2, timeout=limit)
    group = dist.group.WORLD
    assert group is not None
    inputs = head()
    weight = inputs["weight"][rank * ROWS : (rank + 1) * ROWS].clone().requires_grad_()
    hidden = inputs["hidden"].requires_grad_()
    share = VocabularyShare.for_rank(VOCABULARY, ROWS, rank, group)
    logprobs, entropy = vocab_parallel_token_logprobs(hidden, weight, inputs["targets"], 0.7, True, share)
    candidates = vocab_parallel_candidate_logprobs(hidden, weight, inputs["candidates"], 1.3, share)
    together = torch.cat([logprobs[:, None], entropy[:, None], candidates], -1)
    (together * inputs["back"]).sum().backward()  # type: ignore[no-untyped-call]
    collision = vocab_parallel_collision(hidden, weight, 0.7, share)
    results = {
        "columns": together.detach(),
        "collision": collision,
        "hidden": hidden.grad,
        "weight": weight.grad,
    }

    seams = torch.tensor(SEAMS, dtype=torch.int32)
    own = context_shares(LENGTH, 2)[rank]
    plan = plan_context(seams, 2, rank, torch.device("cpu"))
    *states, back = pack()
    local = [tensor[own].clone().requires_grad_() for tensor in states]
    for name, window in (("full", None), ("window", WINDOW)):
        with megatron_cpu_shims():
            attended = context_attention(local[0], local[1], local[2], plan, group, None, window)
            (attended * back[own]).sum().backward()  # type: ignore[no-untyped-call]
        results[name] = attended.detach()
        results |= {f"{name} {index}": tensor.grad for index, tensor in enumerate(local)}
        for tensor in local:
            tensor.grad = None
    save_file({name: tensor.contiguous() for name, tensor in results.items()}, work / str(rank))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Tensor]]]:
    work = tmp_path_factory.mktemp("parts")
    with RankFactory([__name__]) as factory:
        address = free_address()
        codes = factory.run(f"{__name__}:share_parts", [(rank, address, work) for rank in range(2)], 90)
    assert codes == [0, 0]
    yield [load_file(work / str(rank)) for rank in range(2)]


def test_a_vocabulary_divided_between_two_ranks(found: list[dict[str, Tensor]]) -> None:
    inputs = head()
    hidden, weight = inputs["hidden"].requires_grad_(), inputs["weight"].requires_grad_()
    logits = hidden @ weight[:VOCABULARY].T
    log_p, of_candidates = (logits / 0.7).log_softmax(-1), (logits / 1.3).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    expected = torch.cat(
        [
            log_p.gather(-1, inputs["targets"][:, None]),
            entropy,
            of_candidates.gather(-1, inputs["candidates"]),
        ],
        -1,
    )
    (expected * inputs["back"]).sum().backward()  # type: ignore[no-untyped-call]
    for rank in found:
        torch.testing.assert_close(rank["columns"], expected.detach(), atol=1e-9, rtol=1e-9)
        collision = log_p.detach().exp().square().sum(-1)
        torch.testing.assert_close(rank["collision"], collision, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found[0]["hidden"] + found[1]["hidden"], hidden.grad, atol=1e-9, rtol=1e-9)
    both = torch.cat([found[0]["weight"], found[1]["weight"]])
    torch.testing.assert_close(both, weight.grad, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("name", "window"), [("full", None), ("window", WINDOW)])
def test_a_pack_divided_between_two_ranks(
    name: str, window: int | None, found: list[dict[str, Tensor]]
) -> None:
    *states, back = pack()
    q, k, v = (tensor.requires_grad_() for tensor in states)
    positions = torch.arange(LENGTH)
    sequence = torch.bucketize(positions, torch.tensor(SEAMS[1:]), right=True)
    distance = positions[:, None] - positions[None, :]
    mask = (distance >= 0) & (sequence[:, None] == sequence[None, :])
    if window is not None:
        mask &= distance < window
    heads = [tensor.transpose(0, 1) for tensor in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))]
    expected = scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1)
    (expected * back).sum().backward()  # type: ignore[no-untyped-call]
    for rank, own in enumerate(context_shares(LENGTH, 2)):
        torch.testing.assert_close(found[rank][name], expected.detach()[own], atol=1e-9, rtol=1e-9)
        for index, tensor in enumerate((q, k, v)):
            assert tensor.grad is not None
            torch.testing.assert_close(found[rank][f"{name} {index}"], tensor.grad[own], atol=1e-9, rtol=1e-9)
