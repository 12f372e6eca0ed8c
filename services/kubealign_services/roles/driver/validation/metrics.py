"""Validation metrics of sampled responses. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kubealign.spec.held_out_rows import METRIC_PREFIX
from kubealign.spec.sections.validation import ValidationSampling
from kubealign_services.roles.driver.validation.answers import Extract, make_extractor
from kubealign_services.roles.driver.validation.estimators import (
    bootstrap_interval,
    majority_score,
    pass_at_k,
)
from kubealign_services.roles.driver.validation.samples import ValidationSample


@dataclass(frozen=True)
class SummaryOptions:
    """Figures that are reported of a score beside its mean.

    pass_at: numbers k of responses of pass@k. pass_threshold: least score of a response that passes.
    extract: answer by which the responses to a prompt vote; None: no majority. confidence: level of the
    intervals; None: none.
    """

    pass_at: Sequence[int] = ()
    pass_threshold: float = 1.0
    extract: Extract | None = None
    confidence: float | None = None

    @classmethod
    def of_spec(cls, spec: ValidationSampling) -> "SummaryOptions":
        extract = None if spec.majority is None else make_extractor(spec.majority)
        return cls(tuple(spec.pass_at), spec.pass_threshold, extract, spec.confidence)


@dataclass(frozen=True)
class _PromptScores:
    """Responses to one prompt to which a score applies, and their scores."""

    responses: Sequence[str]
    scores: Sequence[float]


def summarize_samples(
    samples: Sequence[ValidationSample],
    metric_names: Mapping[str, str],
    group_by: str | None,
    options: SummaryOptions = SummaryOptions(),
    prefix: str = METRIC_PREFIX,
) -> dict[str, float]:
    """Return the mean score of each source with what the options add, the mean length and the share of
    truncated responses.

    A mean is that of the responses to which the source applies; without any, it is absent. NAME/pass@K and
    NAME/majority@N are means over the prompts with at least K, or N, such responses, where N is the largest
    number of them. NAME/ci_low and NAME/ci_high bound the mean, and NAME/pass@K/ci_low and so on the others.

    Args:
        metric_names: Source -> val/...
        group_by: Column; means are also returned under NAME/VALUE for each of its values.
        prefix: First part of the names of the other metrics.
    """
    measured = _summarize(samples, metric_names, options, prefix)
    if group_by is not None:
        for value in sorted({str(sample.columns[group_by]) for sample in samples}):
            subset = [sample for sample in samples if str(sample.columns[group_by]) == value]
            for name, mean in _summarize(subset, metric_names, options, prefix).items():
                measured[f"{name}/{value}"] = mean
    return measured


def _summarize(
    samples: Sequence[ValidationSample],
    metric_names: Mapping[str, str],
    options: SummaryOptions,
    prefix: str,
) -> dict[str, float]:
    if not samples:
        return {}
    measured: dict[str, float] = {}
    for source, name in metric_names.items():
        prompts = _scores_by_prompt(samples, source)
        if prompts:
            measured |= _score_metrics(prompts, name, options)
    measured[f"{prefix}response_length"] = fmean(sample.length for sample in samples)
    measured[f"{prefix}truncated_share"] = fmean(sample.truncated for sample in samples)
    return measured


def _scores_by_prompt(samples: Sequence[ValidationSample], source: str) -> list[_PromptScores]:
    scored: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for sample in samples:
        score = sample.scores[source]
        if score is not None:
            scored[sample.group_id].append((sample.response, score))
    return [_PromptScores(*zip(*members, strict=True)) for members in scored.values()]


def _score_metrics(prompts: Sequence[_PromptScores], name: str, options: SummaryOptions) -> dict[str, float]:
    """Return the metrics of one source.

    Args:
        prompts: Those with a scored response.
    """
    counts = [len(prompt.scores) for prompt in prompts]
    # One mean over all responses: prompts with more of them count more.
    metrics = _mean_metrics(name, [sum(prompt.scores) for prompt in prompts], counts, options.confidence)
    for k in options.pass_at:
        values = [
            pass_at_k(len(prompt.scores), _count_passed(prompt, options.pass_threshold), k)
            for prompt in prompts
            if len(prompt.scores) >= k
        ]
        metrics |= _mean_metrics(f"{name}/pass@{k}", values, [1] * len(values), options.confidence)
    if options.extract is not None:
        most = max(counts)
        values = [
            majority_score([options.extract(response) for response in prompt.responses], prompt.scores)
            for prompt in prompts
            if len(prompt.scores) == most
        ]
        metrics |= _mean_metrics(f"{name}/majority@{most}", values, [1] * len(values), options.confidence)
    return metrics


def _count_passed(prompt: _PromptScores, threshold: float) -> int:
    return sum(score >= threshold for score in prompt.scores)


def _mean_metrics(
    name: str, sums: Sequence[float], counts: Sequence[int], confidence: float | None
) -> dict[str, float]:
    """Return the mean, and its interval; empty without a prompt."""
    if not sums:
        return {}
    metrics = {name: sum(sums) / sum(counts)}
    if confidence is not None:
        low, high = bootstrap_interval(sums, counts, confidence)
        metrics |= {f"{name}/ci_low": low, f"{name}/ci_high": high}
    return metrics
