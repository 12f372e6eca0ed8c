"""Base weights of a rollout worker's adapters: those that the trainer computes with."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import (
    Backend,
    BaseQuantization,
    Lora,
    Nf4Quantization,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.roles.rollout.weights import check_base_libraries, read_folder_weights
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.training.adapters import quantization as quantization_module
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend


def spec(precision: Precision, double: bool, dora: bool = False) -> Trainer:
    quantization = BaseQuantization(nf4=Nf4Quantization(double_quantization=double))
    return Trainer(
        lora=Lora(rank=2, dora=dora, quantization=quantization),
        backend=Backend(torch=TorchBackendSpec(precision=precision)),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=41, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("precision", list(Precision))
def test_a_workers_base_is_the_trainers_bit_for_bit(precision: Precision, double: bool, folder: Path) -> None:
    trainer = spec(precision, double)
    backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer, total_updates=1)
    try:
        trained = dict(backend.snapshot())  # the adapter is zero at first
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    plain = dict(read_folder_weights(folder))
    rounded = dict(read_folder_weights(folder, trainer))
    assert rounded.keys() == plain.keys() == trained.keys()
    for name, weight in rounded.items():
        assert torch.equal(weight.to(trained[name].dtype), trained[name]), name
    differing = {name for name in plain if not torch.equal(rounded[name].float(), plain[name])}
    # All matrices of the blocks but down_proj, whose rows of 96 weights are no whole blocks.
    assert len(differing) == 2 * 6 and not any("down_proj" in name for name in differing)
    without = trainer.model_copy(update={"lora": Lora(rank=2)})
    for name, weight in read_folder_weights(folder, without):
        assert torch.equal(weight, plain[name])


def test_a_missing_library_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = spec(Precision.FLOAT32, double=True)
    check_base_libraries(trainer)
    monkeypatch.setattr(quantization_module, "find_spec", lambda name: None)
    check_base_libraries(Trainer())
    with pytest.raises(
        PermanentFailure, match=r"^spec\.trainer\.lora\.quantization\.nf4: bitsandbytes is not installed"
    ):
        check_base_libraries(trainer)
