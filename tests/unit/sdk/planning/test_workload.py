"""Tokens and sequences of a step, from the job's fields."""

import pytest
import yaml

from kubealign.planning.workload import workload_of
from kubealign.spec.docs.job_template import job_template
from kubealign.spec.loading.loader import parse_jobs

pytestmark = pytest.mark.timeout(60)

JUDGE = {"prompt": "Rate {response}. End with Score: and a number."}


@pytest.mark.parametrize(
    ("template", "algorithm", "sequences"),
    [
        ("sft", {"sft": {"rowsPerStep": 6}}, 6),
        # A row is a pair of responses.
        ("dpo", {"dpo": {"rowsPerStep": 6}}, 12),
        ("spin", {"spin": {"rowsPerStep": 6}}, 12),
        ("self-rewarding", {"selfRewarding": {"rowsPerStep": 6, "judge": JUDGE}}, 12),
        # A row is one of the sampled responses.
        ("rejection-sampling", {"rejectionSampling": {"rowsPerStep": 6, "samplesPerPrompt": 4}}, 6),
        ("grpo", {"grpo": {"promptsPerStep": 6, "samplesPerPrompt": 4}}, 24),
        # One more response to each prompt, from the reference.
        ("xpo", {"xpo": {"promptsPerStep": 6}}, 12),
    ],
)
def test_sequences_of_a_step(template: str, algorithm: dict[str, object], sequences: int) -> None:
    job = yaml.safe_load(job_template(template, "counted"))
    job["spec"]["algorithm"] = algorithm
    (parsed,) = parse_jobs(yaml.safe_dump(job))
    assert workload_of(parsed.spec).sequences == sequences
