"""Metrics and previews of a step of samples."""

from collections.abc import Sequence
from statistics import fmean

import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.driver.data_generation.samples import PolicySample
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.metrics.report import SampleText, StepRecord


class SampleMetrics:
    """Adds the metrics and previews of each step's samples, with or without rewards."""

    def __init__(self, previews: SamplePreviews) -> None:
        self._previews = previews

    def add_metrics(self, samples: Sequence[PolicySample], step: StepRecord) -> None:
        """Add metrics and previews to the step; a step without samples has none."""
        if not samples:
            return
        lengths = [len(sample.tokens) for sample in samples]
        step.add(
            {
                "batch/sequences": len(samples),
                "batch/tokens": sum(lengths) + sum(len(sample.row.prompt_tokens) for sample in samples),
                "response/length": fmean(lengths),
                "response/length_max": max(lengths),
                "response/truncated_share": fmean(sample.truncated for sample in samples),
            }
        )
        step.sample_texts = {sample.name: SampleText(sample.row.prompt_text, sample.text) for sample in samples}
        self._previews.add_previews(build_batch(samples), step)


def build_batch(samples: Sequence[PolicySample]) -> Batch:
    """Pack prompt and response of each sample.

    Columns: loss_mask, truncated, weight_version and, if the samples have them, reward.NAME and rewards.
    """
    prompt_lengths = [len(sample.row.prompt_tokens) for sample in samples]
    batch = pack(
        [[*sample.row.prompt_tokens, *sample.tokens] for sample in samples],
        [sample.name for sample in samples],
    )
    mask = [
        bit
        for prompt_length, sample in zip(prompt_lengths, samples, strict=True)
        for bit in [0] * prompt_length + [1] * len(sample.tokens)
    ]
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    batch.token_columns["weight_version"] = torch.zeros(len(mask), dtype=torch.int32)
    batch.sequence_columns["truncated"] = torch.tensor(
        [sample.truncated for sample in samples], dtype=torch.uint8
    )
    for name in samples[0].rewards:
        values = [sample.rewards[name] for sample in samples]
        batch.sequence_columns[f"reward.{name}"] = torch.tensor(values, dtype=torch.float64)
    if samples[0].reward is not None:
        rewards = [sample.reward for sample in samples]
        batch.sequence_columns["rewards"] = torch.tensor(rewards, dtype=torch.float32)
    return batch
