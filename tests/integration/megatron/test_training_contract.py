"""Every training backend, in every layout, gives the same results as the torch backend on one rank."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

from kubealign.spec.sections.megatron import MegatronBackendSpec, Recompute
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Backend, TorchBackendSpec
from support.forked_ranks import RankFactory
from support.free_address import free_address
from support.training_contract import VOCABULARY, Seat, Told, batch_of, sit, trainer

pytestmark = pytest.mark.timeout(300)

TOKENS = 24
CHAPTERS = ("policy", "resumed", "critic", "scores", "adapted")
Tell = Callable[..., Told]


def megatron(**split: Any) -> Backend:
    return Backend(megatron=MegatronBackendSpec(microbatch_tokens=TOKENS, **split))


ONE = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS))
LAYOUTS = {
    "torch sharded in two": (2, ONE),
    "tensor 2": (2, megatron(tensor_parallel=2, recompute=Recompute.LAYERS)),
    "pipeline 2": (2, megatron(pipeline_parallel=2)),
    "tensor 2 x pipeline 2": (4, megatron(tensor_parallel=2, pipeline_parallel=2)),
    "data 2": (2, megatron(recompute=Recompute.ATTENTION)),
    "context 2": (2, megatron(context_parallel=2)),
}
OF_ALL = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankFactory]:
    modules = ["kubealign_services.training.megatron_backend.backend", "support.training_contract", "peft"]
    models = [f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen3_moe")]
    with RankFactory([*modules, *models]) as factory:
        yield factory


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range":
    0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    """Llama with tied embeddings: the first stage and the last share a weight."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(LlamaConfig(tie_word_embeddings=True, **SIZES))
    model.save_pretrained(place / "llama")
    return place / "llama"


@pytest.fixture(scope="module")
def mixture(place: Path) -> Path:
    torch.manual_seed(4)
    config = Qwen3MoeConfig(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8, norm_topk_prob=True,
        tie_word_embeddings=False, **SIZES,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(place / "mixture")
    return place / "mixture"


@pytest.fixture(scope="module")
def tell(ranks: RankFactory, place: Path) -> Tell:
    """A story of some ranks, told once however many tests ask for it."""
    known: dict[str, Told] = {}

    def told(
        name: str,
        world_size: int,
        backend: Backend,
        folder: Path,
        chapters: tuple[str, ...] = CHAPTERS,
        elsewhere: Path | None = None,
    ) -> Told:
        if name not in known:
            work = place / name.replace(" ", "-")
            work.mkdir()
            address = free_address() if world_size > 1 else None
            spec = trainer(backend, world_size)
            seats = [
                (Seat(rank, world_size, address, folder, work, spec, chapters, elsewhere),)
                for rank in range(world_size)
            ]
            codes = ranks.run(f"{sit.__module__}:{sit.__name__}", seats, timeout=150)
            assert codes == [0] * world_size, f"{name}: exit codes {codes}"
            known[name] = Told(work, world_size)
        return known[name]

    return told


@pytest.fixture
def alone(tell: Tell, folder: Path) -> Told:
    return tell("torch alone", 1, ONE, folder)


@pytest.fixture
def story(layout: str, tell: Tell, folder: Path) -> Told:
    return tell(layout, *LAYOUTS[layout], folder)


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    assert len(found) == len(wanted) > 0
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=tolerance / 2)


def all_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert found.keys() == wanted.keys() and found
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance, rtol=tolerance, msg=name)


@OF_ALL
def test_columns_before_a_step(story: Told, alone: Told) -> None:
    all_close(story.tensors("first"), alone.tensors("first"), 5e-6)


@OF_ALL
def test_a_frozen_model_in_the_same_processes_does_not_change(story: Told, alone: Told) -> None:
    found, first = story.tensors("frozen"), alone.tensors("first")
    all_close(found, {name: first[name] for name in found}, 5e-6)


@OF_ALL
def test_five_ppo_and_five_sft_steps(story: Told, alone: Told) -> None:
    found, wanted = story.figures["policy"], alone.figures["policy"]
    close(found["ppo"], wanted["ppo"])
    close(found["sft"], wanted["sft"])
    assert found["evaluated"] == pytest.approx(wanted["evaluated"], rel=2e-5, abs=2e-5)
    moved = alone.tensors("columns")["logprobs"] - alone.tensors("first")["logprobs"]
    assert float(moved.abs().max()) > 0.05, "nothing was learnt that could differ"
    all_close(story.tensors("columns"), alone.tensors("columns"), 5e-5)
    all_close(story.tensors("weights"), alone.tensors("weights"))


@OF_ALL
def test_a_loss_that_is_not_finite_changes_nothing(story: Told) -> None:
    """The steps after it are those of `alone`, in whose story nothing else stands between."""
    assert "optimiser step 6 the loss is -inf" in story.figures["policy"]["poisoned"]


@OF_ALL
def test_slices_cover_the_checkpoint_once(story: Told) -> None:
    weights = story.tensors("weights")
    for name, tensor in story.assembled("slices", weights).items():
        assert torch.equal(tensor, weights[name]), name


@OF_ALL
def test_an_export_computes_the_same(story: Told) -> None:
    model = AutoModelForCausalLM.from_pretrained(story.work / "export").eval()
    batch = batch_of(3)
    start, end = batch.cu_seqlens[:2].tolist()
    tokens = batch.tokens[start:end].long()
    with torch.no_grad():
        logits = model(tokens[None]).logits[0] / batch.scalars["temperature"]
    logprobs = logits.log_softmax(-1)[:-1].gather(-1, tokens[1:, None])[:, 0]
    chosen = batch.token_columns["loss_mask"][start + 1 : end] != 0
    found = story.tensors("columns")["logprobs"][start + 1 : end]
    torch.testing.assert_close(found[chosen], logprobs[chosen], atol=1e-5, rtol=1e-5)


@OF_ALL
def test_resuming_equals_not_stopping(story: Told) -> None:
    assert story.figures["resumed"] == story.figures["policy"]["sft"][2:]


def test_a_checkpoint_of_four_ranks_resumes_on_one(tell: Tell, folder: Path) -> None:
    four = tell("tensor 2 x pipeline 2", *LAYOUTS["tensor 2 x pipeline 2"], folder)
    one = tell("megatron alone", 1, megatron(), folder, ("resumed",), four.work / "shards")
    close(one.figures["resumed"], four.figures["policy"]["sft"][2:])


@OF_ALL
def test_a_critic_matches_the_torch_backend(story: Told, alone: Told) -> None:
    close(story.figures["critic"], alone.figures["critic"])
    all_close(story.tensors("values"), alone.tensors("values"))


@OF_ALL
def test_scores_are_drawn_from_the_same_seed(story: Told, alone: Told) -> None:
    all_close(story.tensors("scores"), alone.tensors("scores"), 5e-6)


@OF_ALL
def test_an_adapter_matches_the_torch_backend(story: Told, alone: Told) -> None:
    close(story.figures["adapted"]["sft"], alone.figures["adapted"]["sft"])
    assert story.figures["adapted"]["scale"] == alone.figures["adapted"]["scale"] == 4.0
    for name in ("adapted", "base", "adapter", "merged"):
        all_close(story.tensors(name), alone.tensors(name), 5e-5)
    laid_over = "adapted-export/adapter/adapter_model.safetensors"
    all_close(story.tensors(laid_over), alone.tensors(laid_over), 5e-5)
    base, adapted = story.tensors("base")["logprobs"], story.tensors("adapted")["logprobs"]
    assert float((base - adapted).abs().max()) > 1e-3
    merged = story.tensors("merged")
    for name, tensor in story.assembled("merged-slices", merged).items():
        assert torch.equal(tensor, merged[name]), name


@pytest.mark.parametrize(
    "split", [{"expert_parallel": 2}, {"tensor_parallel": 2}], ids=["expert 2", "tensor 2"]
)
def test_a_mixture_of_experts_matches_the_torch_backend(
    split: dict[str, int], tell: Tell, mixture: Path
) -> None:
    alone = tell("mixture alone", 1, ONE, mixture, ("policy",))
    story = tell(
        f"mixture {split}".translate({ord(c): None for c in "{}':"}),
        2,
        megatron(**split),
        mixture,
        ("policy",),
    )
    close(story.figures["policy"]["ppo"], alone.figures["policy"]["ppo"], 1e-4)
    all_close(story.tensors("weights"), alone.tensors("weights"), 1e-4)
    weights = story.tensors("weights")
    for name, tensor in story.assembled("slices", weights).items():
        assert torch.equal(tensor, weights[name]), name


def test_bf16_stays_near_the_torch_backend(tell: Tell, folder: Path) -> None:
    half = {"precision": Precision.BFLOAT16}
    one = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS, **half))
    alone = tell("torch alone in bf16", 1, one, folder, ("policy",))
    story = tell("tensor 2 in bf16", 2, megatron(tensor_parallel=2, **half), folder, ("policy",))
    for found, wanted in zip(story.figures["policy"]["sft"], alone.figures["policy"]["sft"], strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], abs=5e-2)
        assert found["gradient_norm"] == pytest.approx(wanted["gradient_norm"], rel=0.1)
    # Passes use the rounded weights; the masters equal the folder's weights.
    whole = load_file(folder / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    held = [load_file(path) for path in sorted((story.work / "untrained").glob("*.safetensors"))]
    pieces = [
        tensor
        for shard in held
        for key, tensor in shard.items()
        if "layers.0.mlp.down_proj.weight@" in key and not key.startswith("exp_avg")
    ]
    assert torch.equal(torch.cat(pieces, dim=1), whole)
