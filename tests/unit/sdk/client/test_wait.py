"""Wait for phases, and parsing of submissions."""

from pathlib import Path
from typing import Any

import pytest

from kubealign import AlignmentJob
from kubealign.client.errors import Conflict, JobFailed, JobInvalid
from kubealign.client.records import JobRecord
from kubealign.client.submission import parse_submission, to_document
from kubealign.client.wait import has_reached, parse_phase, timeout_message
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
    ("phase", "until", "expected"),
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
def test_phase_is_reached_or_not(phase: str, until: str, expected: bool) -> None:
    assert has_reached(record(phase), JobPhase(until)) is expected


def test_wait_for_an_unreachable_phase_raises() -> None:
    with pytest.raises(JobFailed, match="n/a has failed: out of rows"):
        has_reached(record("Failed", message="out of rows"), JobPhase.RUNNING)
    for until in (JobPhase.FAILED, JobPhase.SUSPENDED):
        with pytest.raises(Conflict, match=f"can no longer be {until}"):
            has_reached(record("Succeeded"), until)
    with pytest.raises(JobInvalid, match=r"until: must be a phase: Pending, .* \(it holds Done\)"):
        parse_phase("Done")


def test_timeout_message_states_what_the_job_waits_for() -> None:
    late = record("Running", step=3, maxSteps=10, message="waits for rollout-0")
    text = timeout_message(late, "n/a", JobPhase.SUCCEEDED, 60)
    assert text == (
        "waited 60 s for n/a to be Succeeded: it is Running at step 3 of 10; status: waits for rollout-0"
    )


def test_documents_are_in_dependency_order(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(f"{NEXT}---{BASE}")
    for source in (f"{NEXT}---{BASE}", file, str(file), [NEXT, AlignmentJob.from_yaml(BASE)]):
        submission = parse_submission(source)
        assert [document["metadata"]["name"] for document in submission.documents] == ["base", "next"]
        assert submission.is_list
    # Paths in a file are resolved against its folder, those in a text are kept.
    paths = [
        parse_submission(source).documents[0]["spec"]["policy"]["model"]["path"]
        for source in (file, f"{BASE}---{NEXT}")
    ]
    assert paths == [str(tmp_path / "model"), "model"]


def test_single_document_keeps_its_set_fields() -> None:
    job = AlignmentJob.from_yaml(BASE)
    for source in (BASE, job, to_document(job), to_document(job) | {"status": {"phase": "Running"}}):
        submission = parse_submission(source)
        assert not submission.is_list
        # Defaults are left to the backend.
        assert set(submission.documents[0]["spec"]) == {"maxSteps", "algorithm", "policy", "data"}
        assert AlignmentJob.from_yaml(job.to_yaml()) == job
    assert parse_submission([BASE]).is_list


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        (BASE.replace("10", "0"), "spec.maxSteps"),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata"),
        ([BASE, BASE], "metadata.name: another job of this submission has this name: rename one"),
        (NEXT.replace("name: base", "name: next"), "waits for its own result"),
        ("", "is empty"),
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
        ([3], "a int is not a job"),
    ],
)
def test_invalid_submission_names_the_field(given: Any, expected_text: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        parse_submission(given)
    assert expected_text in str(caught.value)
