"""Writes an adapter as a folder for `PeftModel.from_pretrained`, for all training backends."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from kubealign.spec.sections.training import Lora, names_experts

#: Name of the adapter's folder within an exported model.
ADAPTER_FOLDER = "adapter"
_PEFT_PREFIX = "base_model.model."


def write_peft_adapter(
    folder: Path,
    tensors: Mapping[str, Tensor],
    layers: list[str],
    lora: Lora,
    source: Path | None = None,
    score: Tensor | None = None,
    transposed: bool = False,
) -> None:
    """Write a new PEFT folder.

    Args:
        tensors: Adapter tensors by the names of `adapters.lora`.
        layers: Names of the adapted layers, as in the base model, like the names of `tensors`.
        source: Folder of the base model, which peft loads with the adapter; None: it is not recorded.
        score: A classifier's head, which is trained in full and stored with the adapter.
        transposed: True when layers store their weights as [inputs, outputs].
    """
    from peft import LoraConfig, TaskType

    stacked = [name for name in layers if names_experts(name)]
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        # Full names: a suffix such as c_proj may also match a layer without an adapter.
        target_modules=[name for name in layers if name not in stacked],
        target_parameters=stacked or None,
        use_dora=lora.dora,
        fan_in_fan_out=transposed,
        modules_to_save=None if score is None else ["score"],
        task_type=TaskType.CAUSAL_LM if score is None else TaskType.SEQ_CLS,
        base_model_name_or_path=None if source is None else str(source),
        inference_mode=True,
    )
    folder.mkdir()
    config.save_pretrained(str(folder))
    weights = {_PEFT_PREFIX + name: tensor for name, tensor in _peft_layout(tensors, stacked).items()}
    if score is not None:
        weights[_PEFT_PREFIX + "score.weight"] = score
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()}, folder / "adapter_model.safetensors"
    )


def _peft_layout(tensors: Mapping[str, Tensor], stacked: list[str]) -> dict[str, Tensor]:
    """Return the tensors under peft's names and in its shapes.

    peft wraps a module once for each of its adapted parameters, the last one outermost, and names an adapter
    by its wrapper; it flattens A to [experts * rank, inputs] and B to [outputs, rank * experts].
    """
    result = dict(tensors)
    wrapped: dict[str, int] = {}
    for weight in reversed(stacked):
        owner = weight.rpartition(".")[0]
        wrapper = owner + ".base_layer" * wrapped.get(owner, 0)
        wrapped[owner] = wrapped.get(owner, 0) + 1
        down, up = (result.pop(f"{weight}.lora_{part}.weight") for part in "AB")
        result[f"{wrapper}.lora_A.weight"] = down.flatten(0, 1)
        result[f"{wrapper}.lora_B.weight"] = up.permute(1, 2, 0).flatten(1)
    return result
