"""What waiting makes of a job's phases, and what may be handed in."""

from pathlib import Path
from typing import Any

import pytest

from kubealign import AlignmentJob
from kubealign.client.errors import Conflict, JobFailed, JobInvalid
from kubealign.client.handing_in import document_of, handed_in
from kubealign.client.records import JobRecord
from kubealign.client.waiting import reached, still_waits, wanted_phase
from kubealign.spec.status import JobPhase

TEXT = """
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {{name: {name}, labels: {{team: a}}}}
spec:
  maxSteps: 10
  algorithm: {{sft: {{}}}}
  policy: {{model: {model}}}
  data: {{demonstrations: {{source: {{path: rows.jsonl}}, format: {{text: {{}}}}}}}}
"""
BASE = TEXT.format(name="base", model="{path: model}")
NEXT = TEXT.format(name="next", model="{job: {name: base}}")


def record(phase: str, **status: Any) -> JobRecord:
    return JobRecord({"metadata": {"name": "a", "namespace": "n"}, "status": {"phase": phase, **status}})


@pytest.mark.parametrize(
    ("phase", "until", "there"),
    [
        ("Running", "Succeeded", False),
        ("Suspended", "Succeeded", False),
        ("Succeeded", "Succeeded", True),
        ("Succeeded", "Running", True),
        ("Starting", "Running", False),
        ("Failed", "Failed", True),
        ("Suspended", "Suspended", True),
    ],
)
def test_a_phase_is_there_or_not(phase: str, until: str, there: bool) -> None:
    assert reached(record(phase), JobPhase(until)) is there


def test_a_wait_that_cannot_end_well_ends() -> None:
    with pytest.raises(JobFailed, match="n/a has failed: out of rows"):
        reached(record("Failed", message="out of rows"), JobPhase.RUNNING)
    for until in (JobPhase.FAILED, JobPhase.SUSPENDED):
        with pytest.raises(Conflict, match=f"never be {until}"):
            reached(record("Succeeded"), until)
    with pytest.raises(JobInvalid, match=r"until: must be a phase: Pending, .* \(it holds Done\)"):
        wanted_phase("Done")


def test_a_wait_that_was_too_long_says_what_the_job_waits_for() -> None:
    late = record("Running", step=3, maxSteps=10, message="waits for rollout-0")
    said = still_waits(late, "n/a", JobPhase.SUCCEEDED, 60)
    assert said == (
        "waited 60 s for n/a to be Succeeded: it is Running at step 3 of 10; it says: waits for rollout-0"
    )


def test_documents_come_in_the_order_of_their_dependencies(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(f"{NEXT}---{BASE}")
    for given in (f"{NEXT}---{BASE}", file, str(file), [NEXT, AlignmentJob.from_yaml(BASE)]):
        found = handed_in(given)
        assert [document["metadata"]["name"] for document in found.documents] == ["base", "next"]
        assert found.several
    # Paths in a file are its folder's, those in a text stay.
    paths = [
        handed_in(given).documents[0]["spec"]["policy"]["model"]["path"]
        for given in (file, f"{BASE}---{NEXT}")
    ]
    assert paths == [str(tmp_path / "model"), "model"]


def test_one_document_is_one_job_and_stays_as_it_was_written() -> None:
    job = AlignmentJob.from_yaml(BASE)
    for given in (BASE, job, document_of(job), document_of(job) | {"status": {"phase": "Running"}}):
        found = handed_in(given)
        assert not found.several
        # What was not set is left to whoever runs it.
        assert set(found.documents[0]["spec"]) == {"maxSteps", "algorithm", "policy", "data"}
        assert AlignmentJob.from_yaml(job.to_yaml()) == job
    assert handed_in([BASE]).several


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (BASE.replace("10", "0"), "spec.maxSteps"),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata"),
        ([BASE, BASE], "metadata.name: another job of these has this name: rename one"),
        (NEXT.replace("name: base", "name: next"), "waits for its own result"),
        ("", "is empty"),
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
        ([3], "a int is no job"),
    ],
)
def test_what_is_no_job_is_refused_with_its_place(given: Any, said: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        handed_in(given)
    assert said in str(caught.value)
