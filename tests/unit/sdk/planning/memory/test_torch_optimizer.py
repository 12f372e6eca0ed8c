"""Planned optimiser state, compared with the state of real optimizers after a step."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from kubealign.planning.job_plan import plan_job
from kubealign.planning.machine import Device, Machine
from kubealign.planning.memory.torch_optimizer import torch_optimizer_memory
from kubealign.planning.memory.trainer import TrainedModel, trainer_memory
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.model.shape_sources import ModelShapes
from kubealign.planning.workload import Workload
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.training import Lora, Optimizer, Trainer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.torch_backend.optimizers.factory import make_optimizer
from support.bad_specs import whole_job

COMMON = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 500, "hidden_size": 64}
CONFIGS = {
    # Its keys and values have 2,048 weights each, too few for 8 bits.
    "llama": LlamaConfig(num_hidden_layers=3, intermediate_size=160, **(COMMON | {"num_key_value_heads": 2})),
    "tied": LlamaConfig(num_hidden_layers=3, intermediate_size=160, tie_word_embeddings=True, **COMMON),
    "experts": Qwen3MoeConfig(
        num_hidden_layers=2, intermediate_size=160, num_experts=64, num_experts_per_tok=2,
        moe_intermediate_size=32, head_dim=16, **COMMON,
    ),
}  # fmt: skip
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "blockwise": {"adamW": {"states": "Blockwise8Bit"}},
    "muon": {"muon": {}},
    "both": {"adamW": {"states": "Blockwise8Bit"}, "muon": {}},
}


def memory(config: PretrainedConfig, trainer: Trainer, device: Device = Device.GPU) -> Any:
    shape = parse_model_shape(config.to_dict(), "test")
    adapter = None if trainer.lora is None else parameter_counts.adapter(shape, trainer.lora)
    return torch_optimizer_memory(shape, trainer, parameter_counts.total(shape), adapter, device)


def state_bytes(config: PretrainedConfig, optimizer: dict[str, Any]) -> int:
    """Return the bytes of the state of a real optimizer after a step, without the counters of steps."""
    model = AutoModelForCausalLM.from_config(config)
    real = make_optimizer(PackedModel(model, Head.LANGUAGE_MODEL, None), Optimizer.model_validate(optimizer))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    real.step()
    states = [real.saved_state(parameter) for parameter in model.parameters()]
    return sum(tensor.nbytes for state in states for tensor in state.values() if tensor.dim())


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("model", list(CONFIGS))
def test_the_state_is_that_of_a_real_optimizer(model: str, optimizer: str) -> None:
    trainer = Trainer(optimizer=Optimizer.model_validate(OPTIMIZERS[optimizer]))
    planned = memory(CONFIGS[model], trainer)
    assert planned.device == pytest.approx(state_bytes(CONFIGS[model], OPTIMIZERS[optimizer]), rel=0.002)
    assert planned.host == 0
    shared = memory(CONFIGS[model], trainer.model_copy(update={"ranks": 3}))
    assert shared.device == -(-planned.device // 3)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_on_the_host_weights_and_gradients_are_copied(optimizer: str) -> None:
    config, weights = (
        CONFIGS["llama"],
        parameter_counts.total(parse_model_shape(CONFIGS["llama"].to_dict(), "")),
    )
    on_device = memory(config, Trainer(optimizer=Optimizer.model_validate(OPTIMIZERS[optimizer])))
    trainer = Trainer(optimizer=Optimizer.model_validate(OPTIMIZERS[optimizer] | {"device": "Host"}))
    on_gpu, on_cpu = memory(config, trainer), memory(config, trainer, Device.CPU)
    assert (on_gpu.device, on_gpu.host) == (0, on_device.device + 8 * weights)
    # The host's memory is the machine's.
    assert (on_cpu.device, on_cpu.host) == (on_gpu.host, 0)


def test_an_adapter_has_8_bits_if_its_factors_are_large() -> None:
    config, optimizer = CONFIGS["llama"], Optimizer.model_validate(OPTIMIZERS["blockwise"])
    small, large = (memory(config, Trainer(optimizer=optimizer, lora=Lora(rank=rank))) for rank in (16, 64))
    shape = parse_model_shape(config.to_dict(), "")
    assert small.device == 8 * parameter_counts.adapter(shape, Lora(rank=16))
    assert large.device == int(2.03125 * parameter_counts.adapter(shape, Lora(rank=64)))


def test_the_head_of_a_critic_is_not_the_vocabularys() -> None:
    shape = parse_model_shape(CONFIGS["llama"].to_dict(), "")
    trainer = Trainer(optimizer=Optimizer.model_validate(OPTIMIZERS["blockwise"]))
    work = Workload(prompt=4, response=4, sequences=8, epochs=1, updates=2)
    policy, critic = (
        TrainedModel(shape, trainer, work, Device.GPU, has_vocabulary).optimizer_memory.device
        for has_vocabulary in (True, False)
    )
    assert policy - critic == pytest.approx(2.03125 * 500 * 64 - 8 * 64, abs=2)


def test_the_step_of_muon_holds_the_largest_matrix() -> None:
    muon = memory(
        CONFIGS["llama"], Trainer(optimizer=Optimizer.model_validate({"muon": {}, "device": "Host"}))
    )
    assert muon.working == 8 * 64 * 160
    host = memory(CONFIGS["llama"], Trainer(optimizer=Optimizer.model_validate({"device": "Host"})))
    assert host.working == 0


def test_the_plan_of_a_job_shows_the_hosts_memory() -> None:
    architecture = CONFIGS["llama"].to_dict()
    changes = {
        "spec.policy.model": {"config": {"architecture": architecture, "tokenizer": {"path": "t"}}},
        "spec.critic": {
            "model": {"config": {"architecture": architecture, "tokenizer": {"path": "t"}}},
            "optimizer": {"device": "Host"},
        },
        "spec.trainer.optimizer.device": "Host",
    }
    job = AlignmentJob.model_validate(whole_job("ppo", changes))
    needs = {
        need.group: need
        for need in plan_job(job, ModelShapes({"": architecture}, [job]), Machine(), 32, 32).requirements
    }
    weights = parameter_counts.total(parse_model_shape(architecture, ""))
    assert needs["trainer"].host["optimizer"] == 16 * weights
    assert 0 < needs["critic"].host["optimizer"] < 16 * weights
    assert "optimizer" not in needs["trainer"].peak.parts
    default = AlignmentJob.model_validate(
        whole_job("ppo", {key: value for key, value in changes.items() if "optimizer" not in key})
    )
    need = plan_job(default, ModelShapes({"": architecture}, [default]), Machine(), 32, 32).requirements[0]
    assert "optimizer" not in need.host and need.peak.parts["optimizer"] == 8 * weights


def test_the_peak_of_a_cpu_includes_the_hosts_part() -> None:
    shape = parse_model_shape(CONFIGS["llama"].to_dict(), "")
    work = Workload(prompt=4, response=4, sequences=8, epochs=1, updates=2)
    trainer = Trainer(optimizer=Optimizer.model_validate({"device": "Host"}))
    peak = trainer_memory(TrainedModel(shape, trainer, work, Device.CPU))
    assert peak.parts["optimizer"] == 16 * parameter_counts.total(shape)
