"""`import kubealign` brings in nothing heavy, and has everything."""

import subprocess
import sys

import kubealign

HEAVY = ("torch", "grpc", "kubernetes", "aiohttp", "pandas", "redis", "transformers", "pydantic")
PROGRAM = f"""
import sys
import kubealign
found = set({HEAVY!r}) & set(sys.modules)
assert not found, found
kubealign.AlignmentClient, kubealign.AlignmentJob, kubealign.errors.JobFailed
with kubealign.AlignmentClient.local("/nonexistent/runs") as client:
    assert client.list() == []
found = (set({HEAVY!r}) - {{"pydantic"}}) & set(sys.modules)
assert not found, found
"""


def test_nothing_heavy_is_imported_not_even_by_a_client_of_this_machine() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr


def test_every_name_is_there_and_is_found_by_completion() -> None:
    for name in kubealign.__all__:
        assert getattr(kubealign, name) is not None
        assert name in dir(kubealign)
    assert set(kubealign._HOMES) == set(kubealign.__all__) - {"__version__", "errors"}
    assert not hasattr(kubealign, "AlignmentJbo")


def test_a_job_is_written_and_read_again() -> None:
    job = kubealign.AlignmentJob.from_yaml(
        "{apiVersion: kubealign.dev/v1alpha1, kind: AlignmentJob, metadata: {name: a}, spec: {maxSteps: 3, "
        "algorithm: {ppo: {}}, policy: {model: {path: /m}}, data: {prompts: {source: {path: /p}}}, "
        "rewards: [{name: r, model: {path: /r}}]}}"
    )
    assert kubealign.AlignmentJob.from_yaml(job.to_yaml()) == job
