"""Card (README.md) of a published result: its base model, training settings and validation. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from kubealign.client.records import JobRecord

#: Parts of a spec that say how a result came about. The rest names pods, volumes and services of one cluster.
_TRAINING_FIELDS = ("seed", "maxSteps", "algorithm", "trainer", "critic")
#: Fields of these parts that name pods or volumes too.
_LEFT_OUT = ("podTemplate", "processesPerPod", "model")


@dataclass(frozen=True)
class CardInputs:
    """Contents of a card.

    Attributes:
        repo: Name on the hub.
        is_dataset: The result is rows, not a model.
        is_reward_model: The model has a score head.
        metrics: The last validation metrics, by name; empty: there was no validation.
        version: Version of kubealign.
    """

    job: JobRecord
    repo: str
    is_dataset: bool
    is_reward_model: bool
    metrics: Mapping[str, float]
    version: str


def render_card(inputs: CardInputs) -> str:
    """Return the card as Markdown with the metadata that the hub reads."""
    front = yaml.safe_dump(_metadata(inputs), sort_keys=False, allow_unicode=True)
    sections = [_introduction(inputs), *_use(inputs), *_metrics(inputs), _configuration(inputs.job)]
    return "\n\n".join([f"---\n{front}---", *sections]) + "\n"


def _metadata(inputs: CardInputs) -> dict[str, Any]:
    tags = ["kubealign", inputs.job.algorithm]
    if inputs.is_dataset:
        return {"tags": tags}
    spec = inputs.job.resource.get("spec") or {}
    base = ((spec.get("policy") or {}).get("model") or {}).get("huggingFace") or {}
    pipeline = "text-classification" if inputs.is_reward_model else "text-generation"
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": pipeline, "tags": tags}
    if base.get("repo"):
        metadata["base_model"] = base["repo"]
    return metadata


def _introduction(inputs: CardInputs) -> str:
    job, kind = inputs.job, "data set" if inputs.is_dataset else "model"
    step = "" if job.status.step is None else f" after step {job.status.step}"
    return (
        f"# {inputs.repo.rpartition('/')[2]}\n\n"
        f"This {kind} is the result of the job `{job.name}` (algorithm `{job.algorithm}`){step}, "
        f"made with kubealign {inputs.version}."
    )


def _use(inputs: CardInputs) -> list[str]:
    if inputs.is_dataset:
        return []
    name = "AutoModelForSequenceClassification" if inputs.is_reward_model else "AutoModelForCausalLM"
    code = (
        f"from transformers import AutoTokenizer, {name}\n\n"
        f'model = {name}.from_pretrained("{inputs.repo}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{inputs.repo}")'
    )
    return [f"## Use\n\n```python\n{code}\n```"]


def _metrics(inputs: CardInputs) -> list[str]:
    if not inputs.metrics:
        return []
    rows = "\n".join(f"| `{name}` | {value:.6g} |" for name, value in sorted(inputs.metrics.items()))
    return [
        "## Validation\n\nOn held-out rows, at the last validation:\n\n"
        f"| metric | value |\n| --- | --- |\n{rows}"
    ]


def _configuration(job: JobRecord) -> str:
    spec = job.resource.get("spec") or {}
    chosen = {name: _settings(spec[name]) for name in _TRAINING_FIELDS if name in spec}
    return f"## Training\n\n```yaml\n{yaml.safe_dump(chosen, sort_keys=False)}```"


def _settings(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _settings(part) for name, part in value.items() if name not in _LEFT_OUT}
