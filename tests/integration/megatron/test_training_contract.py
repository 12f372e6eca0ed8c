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
from kubealign_services.batch.temperatures import sequence_temperatures
from support.forked_ranks import RankFactory
from support.free_address import free_address
from support.training_contract import VOCABULARY, ContractRun, RankSetup, batch_of, run_rank, trainer

pytestmark = pytest.mark.timeout(300)

TOKENS = 24
SCENARIOS = ("policy", "resumed", "critic", "scores", "adapted")
RunContract = Callable[..., ContractRun]


def megatron(**split: Any) -> Backend:
    return Backend(megatron=MegatronBackendSpec(microbatch_tokens=TOKENS, **split))


ONE = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS))
SHARED = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS // 2, context_parallel=2))
LAYOUTS = {
    "torch sharded in two": (2, ONE),
    "torch context 2": (2, SHARED),
    "torch context 2 x data 2": (4, SHARED),
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
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range":
    0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    """Write a Llama with tied embeddings: the first stage and the last share a weight."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(LlamaConfig(tie_word_embeddings=True, **SIZES))
    model.save_pretrained(root / "llama")
    return root / "llama"


@pytest.fixture(scope="module")
def mixture(root: Path) -> Path:
    torch.manual_seed(4)
    config = Qwen3MoeConfig(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8, norm_topk_prob=True,
        tie_word_embeddings=False, **SIZES,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(root / "mixture")
    return root / "mixture"


@pytest.fixture(scope="module")
def run_contract(ranks: RankFactory, root: Path) -> RunContract:
    """Run the contract on some ranks, once for all tests that use it."""
    runs: dict[str, ContractRun] = {}

    def run(
        name: str,
        world_size: int,
        backend: Backend,
        folder: Path,
        scenarios: tuple[str, ...] = SCENARIOS,
        elsewhere: Path | None = None,
    ) -> ContractRun:
        if name not in runs:
            work = root / name.replace(" ", "-")
            work.mkdir()
            address = free_address() if world_size > 1 else None
            spec = trainer(backend, world_size)
            setups = [
                (RankSetup(rank, world_size, address, folder, work, spec, scenarios, elsewhere),)
                for rank in range(world_size)
            ]
            codes = ranks.run(f"{run_rank.__module__}:{run_rank.__name__}", setups, timeout=150)
            assert codes == [0] * world_size, f"{name}: exit codes {codes}"
            runs[name] = ContractRun(work, world_size)
        return runs[name]

    return run


@pytest.fixture
def reference(run_contract: RunContract, folder: Path) -> ContractRun:
    return run_contract("torch reference", 1, ONE, folder)


@pytest.fixture
def outcome(layout: str, run_contract: RunContract, folder: Path) -> ContractRun:
    return run_contract(layout, *LAYOUTS[layout], folder)


def close(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    assert len(actual) == len(expected) > 0
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=tolerance / 2)


def all_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert actual.keys() == expected.keys() and actual
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, atol=tolerance, rtol=tolerance, msg=name)


@OF_ALL
def test_columns_before_a_step(outcome: ContractRun, reference: ContractRun) -> None:
    all_close(outcome.tensors("first"), reference.tensors("first"), 5e-6)


@OF_ALL
def test_a_frozen_model_in_the_same_processes_does_not_change(
    outcome: ContractRun, reference: ContractRun
) -> None:
    actual, first = outcome.tensors("frozen"), reference.tensors("first")
    all_close(actual, {name: first[name] for name in actual}, 5e-6)


@OF_ALL
def test_five_ppo_and_five_sft_steps(outcome: ContractRun, reference: ContractRun) -> None:
    actual, expected = outcome.results["policy"], reference.results["policy"]
    close(actual["ppo"], expected["ppo"])
    close(actual["sft"], expected["sft"])
    assert actual["evaluated"] == pytest.approx(expected["evaluated"], rel=2e-5, abs=2e-5)
    moved = reference.tensors("columns")["logprobs"] - reference.tensors("first")["logprobs"]
    assert float(moved.abs().max()) > 0.05, "nothing was learnt that could differ"
    all_close(outcome.tensors("columns"), reference.tensors("columns"), 5e-5)
    all_close(outcome.tensors("weights"), reference.tensors("weights"))


@OF_ALL
def test_a_loss_that_is_not_finite_changes_nothing(outcome: ContractRun) -> None:
    """Check that the following steps equal those of `reference`, which has no failed step."""
    assert "optimiser step 6 the loss is -inf" in outcome.results["policy"]["poisoned"]


@OF_ALL
def test_slices_cover_the_checkpoint_once(outcome: ContractRun) -> None:
    weights = outcome.tensors("weights")
    for name, tensor in outcome.assembled("slices", weights).items():
        assert torch.equal(tensor, weights[name]), name


@OF_ALL
def test_an_export_computes_the_same(outcome: ContractRun) -> None:
    model = AutoModelForCausalLM.from_pretrained(outcome.work / "export").eval()
    batch = batch_of(3)
    start, end = batch.cu_seqlens[:2].tolist()
    tokens = batch.tokens[start:end].long()
    with torch.no_grad():
        logits = model(tokens[None]).logits[0] / sequence_temperatures(batch)[0].item()
    logprobs = logits.log_softmax(-1)[:-1].gather(-1, tokens[1:, None])[:, 0]
    chosen = batch.token_columns["loss_mask"][start + 1 : end] != 0
    actual = outcome.tensors("columns")["logprobs"][start + 1 : end]
    torch.testing.assert_close(actual[chosen], logprobs[chosen], atol=1e-5, rtol=1e-5)


@OF_ALL
def test_resuming_equals_not_stopping(outcome: ContractRun) -> None:
    assert outcome.results["resumed"] == outcome.results["policy"]["sft"][2:]


def test_a_checkpoint_of_four_ranks_resumes_on_one(run_contract: RunContract, folder: Path) -> None:
    four = run_contract("tensor 2 x pipeline 2", *LAYOUTS["tensor 2 x pipeline 2"], folder)
    one = run_contract("megatron reference", 1, megatron(), folder, ("resumed",), four.work / "shards")
    close(one.results["resumed"], four.results["policy"]["sft"][2:])


def test_a_checkpoint_of_context_ranks_resumes_without_them(run_contract: RunContract, folder: Path) -> None:
    shared = run_contract("torch context 2", *LAYOUTS["torch context 2"], folder)
    alone = run_contract("torch from context 2", 2, ONE, folder, ("resumed",), shared.work / "shards")
    close(alone.results["resumed"], shared.results["policy"]["sft"][2:])


@OF_ALL
def test_a_critic_matches_the_torch_backend(outcome: ContractRun, reference: ContractRun) -> None:
    close(outcome.results["critic"], reference.results["critic"])
    all_close(outcome.tensors("values"), reference.tensors("values"))


@OF_ALL
def test_scores_are_drawn_from_the_same_seed(outcome: ContractRun, reference: ContractRun) -> None:
    all_close(outcome.tensors("scores"), reference.tensors("scores"), 5e-6)


@OF_ALL
def test_an_adapter_matches_the_torch_backend(outcome: ContractRun, reference: ContractRun) -> None:
    close(outcome.results["adapted"]["sft"], reference.results["adapted"]["sft"])
    assert outcome.results["adapted"]["scale"] == reference.results["adapted"]["scale"] == 4.0
    for name in ("adapted", "base", "adapter", "merged"):
        all_close(outcome.tensors(name), reference.tensors(name), 5e-5)
    laid_over = "adapted-export/adapter/adapter_model.safetensors"
    all_close(outcome.tensors(laid_over), reference.tensors(laid_over), 5e-5)
    base, adapted = outcome.tensors("base")["logprobs"], outcome.tensors("adapted")["logprobs"]
    assert float((base - adapted).abs().max()) > 1e-3
    merged = outcome.tensors("merged")
    for name, tensor in outcome.assembled("merged-slices", merged).items():
        assert torch.equal(tensor, merged[name]), name


@pytest.mark.parametrize(
    "split", [{"expert_parallel": 2}, {"tensor_parallel": 2}], ids=["expert 2", "tensor 2"]
)
def test_a_mixture_of_experts_matches_the_torch_backend(
    split: dict[str, int], run_contract: RunContract, mixture: Path
) -> None:
    reference = run_contract("mixture reference", 1, ONE, mixture, ("policy",))
    outcome = run_contract(
        f"mixture {split}".translate({ord(c): None for c in "{}':"}),
        2,
        megatron(**split),
        mixture,
        ("policy",),
    )
    close(outcome.results["policy"]["ppo"], reference.results["policy"]["ppo"], 1e-4)
    all_close(outcome.tensors("weights"), reference.tensors("weights"), 1e-4)
    weights = outcome.tensors("weights")
    for name, tensor in outcome.assembled("slices", weights).items():
        assert torch.equal(tensor, weights[name]), name


def test_shared_packs_in_bf16_stay_near_one_rank(run_contract: RunContract, folder: Path) -> None:
    half: dict[str, Any] = {"precision": Precision.BFLOAT16, "gradient_checkpointing": True}
    one = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS, **half))
    shared = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS // 2, context_parallel=2, **half))
    reference = run_contract("torch reference recomputed in bf16", 1, one, folder, ("policy",))
    outcome = run_contract("torch context 2 in bf16", 2, shared, folder, ("policy",))
    for actual, expected in zip(
        outcome.results["policy"]["sft"], reference.results["policy"]["sft"], strict=True
    ):
        assert actual["loss"] == pytest.approx(expected["loss"], abs=5e-2)
        assert actual["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.1)


def test_bf16_stays_near_the_torch_backend(run_contract: RunContract, folder: Path) -> None:
    half = {"precision": Precision.BFLOAT16}
    one = Backend(torch=TorchBackendSpec(microbatch_tokens=TOKENS, **half))
    reference = run_contract("torch reference in bf16", 1, one, folder, ("policy",))
    outcome = run_contract("tensor 2 in bf16", 2, megatron(tensor_parallel=2, **half), folder, ("policy",))
    for actual, expected in zip(
        outcome.results["policy"]["sft"], reference.results["policy"]["sft"], strict=True
    ):
        assert actual["loss"] == pytest.approx(expected["loss"], abs=5e-2)
        assert actual["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.1)
    # Passes use the rounded weights; the masters equal the folder's weights.
    folder_weight = load_file(folder / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    shards = [load_file(path) for path in sorted((outcome.work / "untrained").glob("*.safetensors"))]
    tensors = [
        tensor
        for shard in shards
        for key, tensor in shard.items()
        if "layers.0.mlp.down_proj.weight@" in key and not key.startswith("exp_avg")
    ]
    assert torch.equal(torch.cat(tensors, dim=1), folder_weight)
