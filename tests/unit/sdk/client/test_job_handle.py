"""Representation of a job handle."""

from kubealign.client.job_handle import JobHandle
from kubealign.client.records import JobRecord

EVIL = "<img src=x onerror=alert(1)>"


def view(**status: object) -> JobHandle:
    return JobHandle(
        JobRecord(
            {
                "metadata": {"name": EVIL, "namespace": EVIL},
                "spec": {"algorithm": {EVIL: {}}},
                "status": status,
            }
        )
    )


def test_html_escapes_texts_of_the_job() -> None:
    shown = view(
        phase="Failed", message=EVIL, roles=[{"name": EVIL, "replicas": 2, "ready": 1}], step=3, maxSteps=4
    )._repr_html_()
    assert EVIL not in shown and shown.count("&lt;img") == 5
    assert "width:75.0%" in shown and "step 3 of 4" in shown and "1/2" in shown


def test_repr_is_one_line() -> None:
    record = JobRecord(
        {
            "metadata": {"name": "sums", "namespace": "default"},
            "status": {"phase": "Running", "step": 3, "maxSteps": 90, "reward": 0.41237},
        }
    )
    assert repr(JobHandle(record)) == "<JobHandle default/sums: Running, step 3 of 90, reward 0.4124>"
    assert "not reconciled yet" in repr(JobHandle(JobRecord({"metadata": {"name": "a", "namespace": "b"}})))
