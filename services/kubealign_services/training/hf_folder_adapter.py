"""An adapter as a folder that `PeftModel.from_pretrained` lays over the model it was trained on, whatever the
backend."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from kubealign.spec.training import Lora

#: Of the result's folder, beside the merged model.
FOLDER = "adapter"
_PREFIX = "base_model.model."


def write_adapter(
    folder: Path,
    tensors: Mapping[str, Tensor],
    layers: list[str],
    lora: Lora,
    source: Path,
    score: Tensor | None,
    transposed: bool = False,
) -> None:
    """Write into a new folder. tensors: by the names of `adapters.low_rank`. layers: the adapted layers'
    names. Both as the model calls its layers that the adapter is laid over. source: the folder of the model
    under it. score: a classifier's head, which is trained whole and kept in the adapter. transposed: whether
    layers keep their weights as [inputs, outputs]."""
    from peft import LoraConfig, TaskType

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        # Whole names: an end such as c_proj may be that of a layer that was left as it is.
        target_modules=layers,
        use_dora=lora.dora,
        fan_in_fan_out=transposed,
        modules_to_save=None if score is None else ["score"],
        task_type=TaskType.CAUSAL_LM if score is None else TaskType.SEQ_CLS,
        base_model_name_or_path=str(source),
        inference_mode=True,
    )
    folder.mkdir()
    config.save_pretrained(str(folder))
    held = {_PREFIX + name: tensor for name, tensor in tensors.items()}
    if score is not None:
        held[_PREFIX + "score.weight"] = score
    save_file(
        {name: tensor.contiguous() for name, tensor in held.items()}, folder / "adapter_model.safetensors"
    )
