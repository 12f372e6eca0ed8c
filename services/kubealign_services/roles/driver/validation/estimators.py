"""Estimators of the score of several responses to a prompt. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

#: Resamples of a bootstrap, and its seed: every measurement of as many prompts draws the same ones.
RESAMPLES = 2000
_SEED = 0


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that one of k responses passes: the share of the
    k-subsets of the samples that have a passing one, 1 - C(n - c, k) / C(n, k) (Chen et al. 2021).

    Args:
        samples: Number n of responses, at least k.
        passed: Number c of them that pass.
    """
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def majority_score(answers: Sequence[str | None], scores: Sequence[float]) -> float:
    """Return the mean score of the responses with the most frequent answer.

    Tied answers count alike. A response without an answer (None) does not vote; where none has one, all
    responses count.
    """
    by_answer: dict[str, list[float]] = defaultdict(list)
    for answer, score in zip(answers, scores, strict=True):
        if answer is not None:
            by_answer[answer].append(score)
    if not by_answer:
        return fmean(scores)
    most = max(map(len, by_answer.values()))
    return fmean(fmean(members) for members in by_answer.values() if len(members) == most)


def bootstrap_interval(
    sums: Sequence[float], counts: Sequence[int], confidence: float
) -> tuple[float, float]:
    """Return the percentile interval of sum(sums) / sum(counts) under resampling of the prompts.

    Args:
        sums: Sum of the values of each prompt.
        counts: Number of values of each prompt, above 0.
        confidence: Level of the interval, between 0 and 1.
    """
    prompts = len(sums)
    draws: NDArray[np.int64] = np.random.default_rng(_SEED).multinomial(
        prompts, np.full(prompts, 1 / prompts), RESAMPLES
    )
    means = (draws @ np.asarray(sums, np.float64)) / (draws @ np.asarray(counts, np.float64))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
