"""Selects the samples that become rows by their rewards."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kubealign.spec.algorithms import SampleSelection
from kubealign_services.roles.driver.data_generation.row_format import RowFormatter
from kubealign_services.roles.driver.data_generation.samples import PolicySample, group_by_prompt
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord

DataRow = dict[str, Any]


@dataclass(frozen=True)
class RewardSelector:
    """Row selector that applies the spec's `keep`."""

    keep: SampleSelection
    row_formatter: RowFormatter

    async def __call__(
        self, samples: Sequence[PolicySample], state: DataGenerationState, step: StepRecord
    ) -> list[DataRow]:
        return select_rows(self.keep, samples, self.row_formatter, state)


def select_rows(
    keep: SampleSelection,
    samples: Sequence[PolicySample],
    row_formatter: RowFormatter,
    state: DataGenerationState,
) -> list[DataRow]:
    """Return the rows of a step's samples; prompts without a row are counted in the state.

    Best and BestAndWorst need rewards.
    """
    return _SELECTORS[keep](samples, row_formatter, state)


def _select_all(
    samples: Sequence[PolicySample], row_formatter: RowFormatter, state: DataGenerationState
) -> list[DataRow]:
    return [build_demonstration(sample, row_formatter) for sample in samples]


def _select_best(
    samples: Sequence[PolicySample], row_formatter: RowFormatter, state: DataGenerationState
) -> list[DataRow]:
    return [
        build_demonstration(max(group, key=require_reward), row_formatter)
        for group in _group_rewarded(samples, state)
    ]


def _select_best_and_worst(
    samples: Sequence[PolicySample], row_formatter: RowFormatter, state: DataGenerationState
) -> list[DataRow]:
    """Return a preference row per prompt. Of several best or worst samples the first is taken."""
    rows = []
    for group in _group_rewarded(samples, state):
        best, worst = max(group, key=require_reward), min(group, key=require_reward)
        if require_reward(best) == require_reward(worst) or best.text == worst.text:
            state.count_skipped("alike")
            continue
        ratings = {"chosen_rating": require_reward(best), "rejected_rating": require_reward(worst)}
        rows.append(build_preference(best, worst, row_formatter) | ratings)
    return rows


def _group_rewarded(
    samples: Sequence[PolicySample], state: DataGenerationState
) -> Iterator[list[PolicySample]]:
    """Yield the samples of each prompt that have a reward; prompts without any are counted in the state."""
    for group in group_by_prompt(samples):
        rewarded = [sample for sample in group if sample.reward is not None]
        if rewarded:
            yield rewarded
        else:
            state.count_skipped("unrewarded")


_SELECTORS: dict[
    SampleSelection, Callable[[Sequence[PolicySample], RowFormatter, DataGenerationState], list[DataRow]]
] = {
    SampleSelection.ALL: _select_all,
    SampleSelection.BEST: _select_best,
    SampleSelection.BEST_AND_WORST: _select_best_and_worst,
}


def require_reward(sample: PolicySample) -> float:
    """Return the sample's reward. Raises ValueError if it has none."""
    if sample.reward is None:
        raise ValueError(f"sample {sample.name} has no reward")
    return sample.reward


def build_demonstration(sample: PolicySample, row_formatter: RowFormatter) -> DataRow:
    """Return the row of one sample."""
    return row_formatter.demonstration(sample.row, sample.text) | sample.reward_columns()


def build_preference(chosen: PolicySample, rejected: PolicySample, row_formatter: RowFormatter) -> DataRow:
    """Return the row of two samples, with their reward columns as chosen_NAME and rejected_NAME."""
    sides = {"chosen": chosen, "rejected": rejected}
    judged = {
        f"{side}_{name}": value
        for side, sample in sides.items()
        for name, value in replace(sample, columns={}).reward_columns().items()
    }
    return row_formatter.preference(chosen.row, chosen.text, rejected.text) | judged
