"""Sums as a taskset of the package verifiers: `vf-eval sums` and kubealign take the same module."""

import random
import re
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumsConfig(vf.TasksetConfig):
    """count: number of tasks. highest: largest summand. seed: seed of the summands."""

    count: int = 2000
    highest: int = 50
    seed: int = 1


class SumData(vf.TaskData):
    answer: int


class Sum(vf.Task[SumData]):
    @vf.reward
    async def right(self, task, trace) -> float:
        numbers = re.findall(r"\d+", trace.last_reply)
        return float(bool(numbers) and int(numbers[-1]) == task.answer)

    @vf.metric
    async def characters(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self) -> Iterator[Sum]:
        draw = random.Random(self.config.seed)
        for _ in range(self.config.count):
            left, right = draw.randint(0, self.config.highest), draw.randint(0, self.config.highest)
            prompt = f"What is {left} + {right}? Answer with the number alone."
            yield Sum(SumData(prompt=prompt, answer=left + right), self.config.task)
