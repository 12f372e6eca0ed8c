"""`import kubealign` is light and exports every public name."""

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


def test_local_client_imports_no_heavy_package() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr


def test_every_public_name_exists_and_is_listed() -> None:
    for name in kubealign.__all__:
        assert getattr(kubealign, name) is not None
        assert name in dir(kubealign)
    assert set(kubealign._LAZY_MODULES) == set(kubealign.__all__) - {"__version__", "errors"}
    assert not hasattr(kubealign, "AlignmentJbo")


def test_job_round_trips_through_yaml() -> None:
    job = kubealign.AlignmentJob.from_yaml(
        "{apiVersion: kubealign.dev/v1alpha1, kind: AlignmentJob, metadata: {name: a}, spec: {maxSteps: 3, "
        "algorithm: {ppo: {}}, policy: {model: {path: /m}}, data: {prompts: {source: {path: /p}}}, "
        "rewards: [{name: r, model: {path: /r}}]}}"
    )
    assert kubealign.AlignmentJob.from_yaml(job.to_yaml()) == job
