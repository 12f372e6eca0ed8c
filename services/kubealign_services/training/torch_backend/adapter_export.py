"""A trained adapter as a folder that `PeftModel.from_pretrained` lays over the model it was trained on."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kubealign.spec.training import Lora
from kubealign_services.training.torch_backend.lora import adapted_layers, is_transposed, stream_adapter
from kubealign_services.training.torch_backend.packed_model import PackedModel

#: Of the result's folder, beside the merged model.
FOLDER = "adapter"
_PREFIX = "base_model.model."


def whole_adapter(model: PackedModel, rank: int) -> dict[str, Tensor]:
    """The adapter's tensors in fp32 by name, as they are trained; collective, empty tensors but on rank 0."""
    return dict(stream_adapter(model, torch.float32, rank))


def save_adapter(
    folder: Path,
    model: PackedModel,
    tensors: dict[str, Tensor],
    lora: Lora,
    source: Path,
    rename: dict[str, str],
    score: Tensor | None,
) -> None:
    """Write the adapter into a new folder. tensors: as of `whole_adapter`. source: the folder of the model
    under it. rename: layer's name here -> in the model that the adapter is laid over. score: a classifier's
    head, which is trained whole and kept in the adapter."""
    from peft import LoraConfig, TaskType

    layers: dict[str, Any] = dict(adapted_layers(model.backbone))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        # Whole names: an end such as c_proj may be that of a layer that was left as it is.
        target_modules=[rename[name] for name in layers],
        use_dora=lora.dora,
        fan_in_fan_out=any(is_transposed(layer) for layer in layers.values()),
        modules_to_save=None if score is None else ["score"],
        task_type=TaskType.CAUSAL_LM if score is None else TaskType.SEQ_CLS,
        base_model_name_or_path=str(source),
        inference_mode=True,
    )
    folder.mkdir()
    config.save_pretrained(str(folder))
    held = {_PREFIX + _renamed(name, rename): tensor for name, tensor in tensors.items()}
    if score is not None:
        held[_PREFIX + "score.weight"] = score
    save_file(
        {name: tensor.contiguous() for name, tensor in held.items()}, folder / "adapter_model.safetensors"
    )


def _renamed(name: str, rename: dict[str, str]) -> str:
    layer, mark, part = name.rpartition(".lora_")
    return rename[layer] + mark + part
