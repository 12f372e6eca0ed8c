"""Attention heads of a model, which the context-parallel ranks of the torch backend share equally."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubealign.spec.model_types import read_folder_config
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.models import Model
from kubealign.spec.sections.training import Trainer

if TYPE_CHECKING:
    from kubealign.spec.job import AlignmentJob

#: Names of the number of heads in Hugging Face configs; the second one is GPT-2's.
_NAMES = ("num_attention_heads", "n_head")


def heads_problem(
    trainer: Trainer, config: Mapping[str, Any], path: DocumentPath
) -> Iterator[tuple[DocumentPath, int, str]]:
    """Yield (path, value, message) of a contextParallel that does not divide the model's attention heads.

    Args:
        config: The model's Hugging Face config.
        path: Of the trainer in the document.
    """
    torch = trainer.backend.torch
    if torch is None or torch.context_parallel == 1:
        return
    heads = count_heads(config)
    if heads is not None and heads % torch.context_parallel:
        allowed = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        yield (
            (*path, "backend", "torch", "contextParallel"),
            torch.context_parallel,
            f"must divide the model's attention heads ({heads}): write one of {allowed}",
        )


def count_heads(config: Mapping[str, Any]) -> int | None:
    """Return the number of attention heads that a Hugging Face config states; None: it states none."""
    text = config.get("text_config")
    fields = text if isinstance(text, Mapping) else config
    heads = next((fields[name] for name in _NAMES if name in fields), None)
    return heads if isinstance(heads, int) and heads > 0 else None


def folder_heads_problems(job: "AlignmentJob") -> Iterator[tuple[DocumentPath, int, str]]:
    """Yield the problems of the job's trained models that are in folders of this machine.

    Models elsewhere are checked when the training starts.
    """
    spec = job.spec
    trained: list[tuple[str, Trainer, Model | None]] = [("trainer", spec.trainer, spec.policy.model)]
    critic = spec.effective_critic
    if critic is not None:
        trained.append(("critic", critic, critic.model))
    for section, trainer, model in trained:
        if model is not None and model.path is not None:
            yield from heads_problem(trainer, read_folder_config(Path(model.path)) or {}, ("spec", section))
