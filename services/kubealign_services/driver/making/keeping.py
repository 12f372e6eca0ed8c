"""Selects the samples that become rows by their rewards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kubealign.spec.algorithms import Keep
from kubealign_services.driver.making.form import Form
from kubealign_services.driver.making.samples import Sample, by_prompt
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import StepFigures

Row = dict[str, Any]


@dataclass(frozen=True)
class Keeping:
    """Row selector that applies the spec's `keep`."""

    keep: Keep
    form: Form

    async def __call__(self, samples: Sequence[Sample], state: MakingState, step: StepFigures) -> list[Row]:
        return kept(self.keep, samples, self.form, state)


def kept(keep: Keep, samples: Sequence[Sample], form: Form, state: MakingState) -> list[Row]:
    """Return the rows of a step's samples; prompts without a row are counted in the state. Best and
    BestAndWorst need rewards.
    """
    return _KEPT[keep](samples, form, state)


def _all(samples: Sequence[Sample], form: Form, state: MakingState) -> list[Row]:
    return [demonstration(sample, form) for sample in samples]


def _best(samples: Sequence[Sample], form: Form, state: MakingState) -> list[Row]:
    return [demonstration(max(group, key=reward), form) for group in by_prompt(samples)]


def _best_and_worst(samples: Sequence[Sample], form: Form, state: MakingState) -> list[Row]:
    """Return a preference row per prompt. Of several best or worst samples the first is taken."""
    rows = []
    for group in by_prompt(samples):
        best, worst = max(group, key=reward), min(group, key=reward)
        if reward(best) == reward(worst) or best.text == worst.text:
            state.leave_out("alike")
            continue
        ratings = {"chosen_rating": reward(best), "rejected_rating": reward(worst)}
        rows.append(preference(best, worst, form) | ratings)
    return rows


_KEPT: dict[Keep, Callable[[Sequence[Sample], Form, MakingState], list[Row]]] = {
    Keep.ALL: _all,
    Keep.BEST: _best,
    Keep.BEST_AND_WORST: _best_and_worst,
}


def reward(sample: Sample) -> float:
    """Return the sample's reward. Raises ValueError if it has none."""
    if sample.reward is None:
        raise ValueError(f"sample {sample.name} has no reward")
    return sample.reward


def demonstration(sample: Sample, form: Form) -> Row:
    """Return the row of one sample."""
    return form.demonstration(sample.row, sample.text) | sample.judged()


def preference(chosen: Sample, rejected: Sample, form: Form) -> Row:
    """Return the row of two samples, with their reward columns as chosen_NAME and rejected_NAME."""
    sides = {"chosen": chosen, "rejected": rejected}
    judged = {
        f"{side}_{name}": value
        for side, sample in sides.items()
        for name, value in replace(sample, columns={}).judged().items()
    }
    return form.preference(chosen.row, chosen.text, rejected.text) | judged
