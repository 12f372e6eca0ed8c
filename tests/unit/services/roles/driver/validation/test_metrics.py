"""Metrics of several responses to each prompt, worked by hand."""

import pytest

from kubealign.spec.sections.validation import ValidationSampling
from kubealign_services.roles.driver.validation.metrics import SummaryOptions, summarize_samples
from kubealign_services.roles.driver.validation.samples import ValidationSample

OPTIONS = SummaryOptions.of_spec(
    ValidationSampling.model_validate(
        {"samplesPerPrompt": 4, "passAt": [1, 2, 4], "passThreshold": 0.5, "majority": {"number": {}}}
    )
)


def sample(prompt: int, response: str, score: float | None, kind: str = "a") -> ValidationSample:
    return ValidationSample(
        f"val@0/{prompt}", "p", response, 2, False, {"right": score, "other": None}, {"kind": kind}
    )


#: Prompt 0: one of four passes, and 7 wins, which is wrong. Prompt 1: three of four pass, and 5 wins. Prompt
#: 2 has two scored responses, which pass.
SAMPLES = [
    *(sample(0, text, score) for text, score in (("7", 0.0), ("7", 0.0), ("8", 0.5), ("9", 0.25))),
    *(sample(1, text, score) for text, score in (("5", 1.0), ("5", 1.0), ("5", 1.0), ("4", 0.0))),
    *(sample(2, "3", score, "b") for score in (1.0, 1.0, None, None)),
]
NAMES = {"right": "val/reward/right", "other": "val/other"}


def test_pass_and_majority_by_hand() -> None:
    assert summarize_samples(SAMPLES, NAMES, None, OPTIONS) == pytest.approx(
        {
            "val/reward/right": 5.75 / 10,
            # 1/4, 3/4 and 1.
            "val/reward/right/pass@1": 2 / 3,
            # 1 - C(3,2)/C(4,2), 1 and 1.
            "val/reward/right/pass@2": 2.5 / 3,
            # Prompt 2 has too few responses.
            "val/reward/right/pass@4": 1.0,
            "val/reward/right/majority@4": 0.5,
            "val/response_length": 2.0,
            "val/truncated_share": 0.0,
        }
    )


def test_each_group_has_all_metrics() -> None:
    measured = summarize_samples(SAMPLES, NAMES, "kind", OPTIONS)
    assert measured["val/reward/right/pass@2/a"] == 0.75
    assert measured["val/reward/right/pass@2/b"] == 1.0
    assert measured["val/reward/right/majority@2/b"] == 1.0
    assert "val/reward/right/pass@4/b" not in measured


def test_intervals_are_around_every_mean() -> None:
    options = SummaryOptions((1, 2), 0.5, OPTIONS.extract, 0.9)
    measured = summarize_samples(SAMPLES, NAMES, None, options)
    for name in ("", "/pass@1", "/pass@2", "/majority@4"):
        mean = measured[f"val/reward/right{name}"]
        assert measured[f"val/reward/right{name}/ci_low"] < mean < measured[f"val/reward/right{name}/ci_high"]
    assert not any(name.startswith("val/other") for name in measured)


def test_one_response_has_its_mean_alone() -> None:
    assert summarize_samples(SAMPLES[:1], NAMES, None).keys() == {
        "val/reward/right",
        "val/response_length",
        "val/truncated_share",
    }
    assert summarize_samples([], NAMES, None, OPTIONS) == {}
