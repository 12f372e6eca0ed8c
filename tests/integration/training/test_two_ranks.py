"""Two FSDP2 ranks compute the same as one: losses, gradient norms, columns, weights, also after a restart."""

# mypy: disable-error-code="no-untyped-call"
import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from kubealign.spec.sections.optimizers import Muon, OptimizerDevice
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import (
    AdamW,
    Backend,
    BaseQuantization,
    Lora,
    Nf4Quantization,
    Optimizer,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.collectives import all_gather_bytes
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.contract import CorruptCheckpoint, Head, NonFiniteLoss, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.loss_scaling import LossScaler, LossScaleState
from kubealign_services.training.torch_backend.model.fsdp import local_shard
from kubealign_services.training.torch_backend.passes.activation_offload import ActivationOffload
from support import second_rank

pytestmark = pytest.mark.timeout(240)

VOCABULARY = 41
STEPS = 10
NF4 = BaseQuantization(nf4=Nf4Quantization())
# 32 tokens per pack; step 4 has one sequence, so one rank has no sequence.
LENGTHS = [(5, 9, 1, 12, 7, 30, 3, 16), (2, 2, 2, 40), (33, 1), (8,) * 7, (6,)] * 2


class MeanNegativeLogprob:
    outputs = frozenset({"logprobs"})
    unit = 1

    def prepare(self, minibatch: Batch) -> None:
        predicted = (minibatch.positions > 0).float()
        minibatch.token_columns["share"] = predicted / predicted.sum().clamp(min=1)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        assert outputs.logprobs is not None
        loss = -(outputs.logprobs * microbatch.token("share")).sum()
        if "poison" in microbatch.scalars and bool((microbatch.tokens == 0).any()):
            loss = loss * float("inf")
        return LossTerms(
            loss, {"sequences": torch.tensor(len(microbatch))}, {"longest": microbatch.lengths.max()}
        )


def batch_of(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    lengths = LENGTHS[step]
    return pack(
        [torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in lengths],
        [str(i) for i in range(len(lengths))],
    )


def trainer(precision: Precision, checkpointing: bool, lora: Lora | None = None) -> Trainer:
    return Trainer(
        backend=Backend(
            torch=TorchBackendSpec(
                microbatch_tokens=32, precision=precision, gradient_checkpointing=checkpointing
            )
        ),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2, weight_decay=0.1), gradient_clip_norm=1.0),
        lora=lora,
    )


def commands(folder: Path, rank: int, world_size: int, spec: Trainer) -> Handlers:
    """Return the commands of both ranks, on the backend that the command Create makes."""
    backends: list[TorchTrainingBackend] = []
    objective = MeanNegativeLogprob()

    def create(_: bytes) -> bytes:
        backends[:] = [
            TorchTrainingBackend.create(
                folder, Head.LANGUAGE_MODEL, spec, STEPS, rank=rank, world_size=world_size
            )
        ]
        return b""

    def step(payload: bytes) -> bytes:
        number = int(payload)
        plan = UpdatePlan(1, len(LENGTHS[number]), seed=number)
        return json.dumps(backends[0].train_step(batch_of(number), objective, plan)).encode()

    def offload(_: bytes) -> bytes:
        """Offload activations although they are on a CPU, and drop the earlier count of moved bytes."""
        moved = ActivationOffload(torch.device("cpu"), minimum_bytes=256)
        backends[0]._context = replace(backends[0]._context, activation_offload=moved)
        return b""

    def moved_bytes(_: bytes) -> bytes:
        moved = backends[0]._context.activation_offload
        count = 0 if moved is None else moved.moved_bytes
        return json.dumps([int(each) for each in all_gather_bytes(str(count).encode(), world_size)]).encode()

    def poison(_: bytes) -> bytes:
        batch = batch_of(0)
        batch.scalars["poison"] = 1.0
        batch.tokens[-1] = 0
        backends[0].train_step(batch, objective, UpdatePlan(1, 8, seed=0))
        return b""

    def ask(path: bytes) -> bytes:
        columns = backends[0].forward(batch_of(0), frozenset({"logprobs", "entropy"}))
        metrics = backends[0].evaluate(batch_of(0), objective)
        weights = dict(backends[0].snapshot())
        adapter = backends[0].adapter()
        if adapter is not None:
            weights |= dict(adapter.tensors)
            columns["base"] = backends[0].base_forward(batch_of(0), frozenset({"logprobs"}))["logprobs"]
        if rank == 0:
            save_file({**columns, **weights}, path.decode())
        else:
            assert not any(tensor.numel() for tensor in weights.values())
        return json.dumps(metrics).encode()

    def save(path: bytes) -> bytes:
        backends[0].save(Path(path.decode()))
        return b""

    def load(path: bytes) -> bytes:
        backends[0].load(Path(path.decode()))
        return b""

    def export(path: bytes) -> bytes:
        backends[0].export(Path(path.decode()))
        return b""

    def scale(payload: bytes) -> bytes:
        scaler(backends[0]).load(LossScaleState(float(payload)))
        return b""

    def scaler_states(_: bytes) -> bytes:
        state = scaler(backends[0]).state()
        result = json.dumps([backends[0].updates, state.scale, state.growth_tracker])
        return json.dumps(
            [json.loads(each) for each in all_gather_bytes(result.encode(), world_size)]
        ).encode()

    def overflow_on_the_last_rank(_: bytes) -> bytes:
        """Unscale gradients of which one element, of the last rank's shard, is infinite."""
        parameters = [p for p in backends[0].model.parameters() if p.requires_grad]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        if rank == world_size - 1:
            local_shard(parameters[0].grad).view(-1)[0] = float("inf")  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        overflowed = scaler(backends[0]).unscale(optimizer)
        result = json.dumps([overflowed, scaler(backends[0]).scale]).encode()
        return json.dumps([json.loads(each) for each in all_gather_bytes(result, world_size)]).encode()

    scaling = {"Scale": scale, "States": scaler_states, "Overflow": overflow_on_the_last_rank}
    handlers = {"Create": create, "Step": step, "Poison": poison, "Ask": ask}
    moving = {"Offload": offload, "Moved": moved_bytes}
    return {**handlers, **scaling, **moving, "Save": save, "Load": load, "Export": export}


def scaler(backend: TorchTrainingBackend) -> LossScaler:
    assert backend.loss_scaler is not None
    return backend.loss_scaler


def commands_of(folder: Path, rank: int, world_size: int, spec: str) -> Handlers:
    """Return the handlers of a rank. spec: as JSON, in which it reaches the other process."""
    return commands(folder, rank, world_size, Trainer.model_validate_json(spec))


def two_ranks(folder: Path, spec: Trainer) -> AbstractContextManager[tuple[CommandGroup, Handlers]]:
    return second_rank.two_ranks(commands_of, folder, spec.model_dump_json(by_alias=True))


def run_all(group: CommandGroup, handlers: Handlers, work: Path) -> dict[str, Any]:
    """Run all commands on a group of any size and return the results."""
    work.mkdir()
    (work / "shards").mkdir()

    def tell(name: str, payload: str = "") -> bytes:
        return group.run(name, payload.encode(), handlers)

    tell("Create")
    steps = []
    for number in range(STEPS):
        steps.append(json.loads(tell("Step", str(number))))
        if number == 2:
            with pytest.raises(NonFiniteLoss, match="optimiser step 4 the loss is inf"):
                tell("Poison")
        if number == 5:
            tell("Save", str(work / "shards"))
    asked = json.loads(tell("Ask", str(work / "asked")))
    tell("Export", str(work / "export"))
    tell("Create")
    tell("Load", str(work / "shards"))
    again = [json.loads(tell("Step", str(number))) for number in range(6, STEPS)]
    return {"steps": steps, "asked": asked, "again": again, "columns": load_file(work / "asked")}


def save_llama(folder: Path, width: int = 24, spread: float = 0.2) -> Path:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=spread,
        tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


@pytest.mark.parametrize(
    ("precision", "checkpointing", "tolerance", "lora"),
    [
        (Precision.FLOAT32, True, 1e-5, None),
        pytest.param(Precision.BFLOAT16, False, 5e-2, None, marks=pytest.mark.full),
        (Precision.FLOAT32, True, 1e-5, Lora(rank=3, alpha=12, dora=True)),
        pytest.param(Precision.BFLOAT16, True, 5e-2, Lora(rank=3, alpha=12), marks=pytest.mark.full),
        (Precision.FLOAT32, True, 1e-5, Lora(rank=3, alpha=12, quantization=NF4)),
        (Precision.BFLOAT16, False, 5e-2, Lora(rank=3, alpha=12, quantization=NF4)),
    ],
    ids=["fp32", "bf16", "dora fp32", "lora bf16", "nf4 fp32", "nf4 bf16"],
)
def test_two_ranks_match_one_rank(
    precision: Precision,
    checkpointing: bool,
    tolerance: float,
    lora: Lora | None,
    folder: Path,
    tmp_path: Path,
) -> None:
    spec = trainer(precision, checkpointing, lora)
    if lora is not None and lora.quantization is not None:
        # Rows of whole blocks.
        folder = save_llama(tmp_path / "wide", 64, 0.12)
    with two_ranks(folder, spec) as (group, handlers):
        two = run_all(group, handlers, tmp_path / "two")
    with CommandGroup(0, 1, None, 60) as group:
        one = run_all(group, commands(folder, 0, 1, spec), tmp_path / "one")

    for actual, expected in zip(two["steps"], one["steps"], strict=True):
        assert actual == pytest.approx(expected, rel=tolerance * 10, abs=tolerance)
        assert actual["loss"] == pytest.approx(expected["loss"], abs=tolerance)
    if lora is None:
        assert one["steps"][0]["loss"] > one["steps"][5]["loss"] + 0.1
    else:
        # The model with disabled adapters differs from the trained model.
        gap = (one["columns"]["base"] - one["columns"]["logprobs"]).abs().max()
        assert gap > 0.05, gap
    assert two["asked"] == pytest.approx(one["asked"], abs=tolerance)
    assert two["again"] == two["steps"][6:] and one["again"] == one["steps"][6:]
    if precision is Precision.FLOAT32:
        for name, expected in one["columns"].items():
            torch.testing.assert_close(two["columns"][name], expected, atol=1e-4, rtol=1e-4, msg=name)
        # The exported model computes the same as the two ranks.
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "export").eval()
        tokens = batch_of(0).tokens[5:14].long()
        with torch.no_grad():
            logprobs = model(tokens[None]).logits[0].log_softmax(-1)[:-1].gather(-1, tokens[1:, None])[:, 0]
        torch.testing.assert_close(two["columns"]["logprobs"][6:14], logprobs, atol=1e-5, rtol=1e-5)
    # One rank cannot load the shards of two.
    alone = TorchTrainingBackend.create(
        folder, Head.LANGUAGE_MODEL, trainer(Precision.FLOAT32, False, lora), STEPS
    )
    with pytest.raises(
        CorruptCheckpoint, match=r"shard-00000-of-00001\.json does not exist; the folder holds"
    ):
        alone.load(tmp_path / "two" / "shards")


@pytest.mark.full
def test_two_ranks_with_muon_on_the_host_match_one_rank(folder: Path, tmp_path: Path) -> None:
    """Orthogonalisation in bf16 enlarges the rounding errors of the gradients' sums."""
    spec = trainer(Precision.BFLOAT16, checkpointing=False)
    optimizer = spec.optimizer.model_copy(update={"muon": Muon(), "device": OptimizerDevice.HOST})
    spec = spec.model_copy(update={"optimizer": optimizer})
    with two_ranks(folder, spec) as (group, handlers):
        two = run_all(group, handlers, tmp_path / "two")
    with CommandGroup(0, 1, None, 60) as group:
        one = run_all(group, commands(folder, 0, 1, spec), tmp_path / "one")
    for actual, expected in zip(two["steps"], one["steps"], strict=True):
        assert actual["loss"] == pytest.approx(expected["loss"], abs=5e-2)
    assert one["steps"][0]["loss"] > one["steps"][5]["loss"] + 0.1
    assert two["again"] == two["steps"][6:] and one["again"] == one["steps"][6:]


@pytest.mark.parametrize(
    ("checkpointing", "lora"),
    [(False, None), (True, Lora(rank=3, alpha=12, quantization=NF4))],
    ids=["all weights", "nf4"],
)
def test_offloaded_activations_change_nothing(checkpointing: bool, lora: Lora | None, tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model", 64, 0.12)
    spec = trainer(Precision.FLOAT32, checkpointing, lora)
    results = {}
    with two_ranks(folder, spec) as (group, handlers):
        for offloads in (False, True):

            def tell(name: str, payload: str = "") -> bytes:
                return group.run(name, payload.encode(), handlers)

            tell("Create")
            if offloads:
                tell("Offload")
            steps = [json.loads(tell("Step", str(number))) for number in range(5)]
            asked = json.loads(tell("Ask", str(tmp_path / f"asked-{offloads}")))
            results[offloads] = (steps, asked, load_file(tmp_path / f"asked-{offloads}"))
            moved = json.loads(tell("Moved"))
            assert len(moved) == 2 and all((count > 0) is offloads for count in moved)
    steps, asked, columns = results[True]
    assert (steps, asked) == results[False][:2]
    for name, expected in results[False][2].items():
        assert torch.equal(columns[name], expected), name


def test_two_ranks_in_fp16_skip_the_same_steps(folder: Path, tmp_path: Path) -> None:
    spec = trainer(Precision.FLOAT16, checkpointing=False)
    with two_ranks(folder, spec) as (group, handlers):
        two = run_overflows(group, handlers, tmp_path / "two")
    assert two["overflow"] == [[True, 2.0**15]] * 2
    first, second = two["steps"][:2]
    assert (first["skipped_updates"], first["loss_scale"]) == (1, two["scale"] / 2)
    assert (second["skipped_updates"], second["loss_scale"]) == (0, two["scale"] / 2)
    assert two["states"] == [[0, two["scale"] / 2, 0]] * 2
    assert two["again"] == two["steps"][3:]
    with CommandGroup(0, 1, None, 60) as group:
        one = run_overflows(group, commands(folder, 0, 1, spec), tmp_path / "one", two["scale"])
    for actual, expected in zip(two["steps"][1:], one["steps"][1:], strict=True):
        assert actual == pytest.approx(expected, rel=2e-2)


def run_overflows(
    group: CommandGroup, handlers: Handlers, work: Path, scale: float | None = None
) -> dict[str, Any]:
    """Run steps in fp16 from the lowest scale that overflows, or from `scale`; restart after three."""
    work.mkdir()

    def tell(name: str, payload: str = "") -> bytes:
        return group.run(name, payload.encode(), handlers)

    def steps(numbers: list[int]) -> list[dict[str, float]]:
        return [json.loads(tell("Step", str(number))) for number in numbers]

    tell("Create")
    overflow = json.loads(tell("Overflow"))
    if scale is None:
        tell("Scale", str(2.0**24))
        while (metrics := steps([0])[0])["skipped_updates"]:
            pass
        scale = 2 * metrics["loss_scale"]
        tell("Create")
    tell("Scale", str(scale))
    skipped = steps([0])
    states = json.loads(tell("States"))
    done = skipped + steps([0, 1])
    tell("Save", str(work))
    done += steps([2, 4])
    tell("Create")
    tell("Load", str(work))
    return {"overflow": overflow, "scale": scale, "states": states, "steps": done, "again": steps([2, 4])}
