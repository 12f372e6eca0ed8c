"""Prompts of some sources of a mixture: those that one of several teachers, or a reward, scores."""

from dataclasses import dataclass

from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.sections.rewards import Reward
from kubealign_services.data.epoch_shuffle import RowOrder
from kubealign_services.data.mixture import build_row_order
from kubealign_services.data.prepared import DatasetReport, row_index


@dataclass(frozen=True)
class PromptSources:
    """Sources of a mixture whose prompts one model scores.

    Args:
        names: Names of the sources.
        order: Order of the rows of the mixture, which tells the source of each row.
    """

    names: frozenset[str]
    order: RowOrder

    def __contains__(self, prompt: object) -> bool:
        """Return True if the model scores the responses to this prompt, PASS/ROW."""
        return isinstance(prompt, str) and self.order.source_of(row_index(prompt)) in self.names


def find_teacher_sources(spec: AlignmentJobSpec, train: DatasetReport, teacher: str) -> PromptSources:
    """Return the sources of prompts that name this teacher.

    Args:
        spec: A job with several teachers.
        train: Report of the prepared prompts.
    """
    assert spec.data.prompts is not None and spec.data.prompts.mixture is not None
    names = frozenset(entry.name for entry in spec.data.prompts.mixture if entry.teacher == teacher)
    return PromptSources(names, build_row_order(spec.data.prompts, train, spec.seed))


def find_reward_sources(spec: AlignmentJobSpec, train: DatasetReport, reward: Reward) -> PromptSources | None:
    """Return the sources of prompts that a reward scores; None: all prompts.

    Args:
        train: Report of the prepared prompts.
    """
    if reward.sources is None:
        return None
    return PromptSources(frozenset(reward.sources), build_row_order(spec.data.value, train, spec.seed))
