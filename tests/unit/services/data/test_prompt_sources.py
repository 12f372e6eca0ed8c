"""Prompts of each of several teachers, by the source of their row."""

from typing import Any

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared import DatasetReport
from kubealign_services.data.prompt_sources import find_teacher_sources
from support.tiny_jobs import FROM_CONFIG

TEACHERS = {"sums": "math", "poems": "verse", "proofs": "math"}
#: Rows of each source that the preparation kept.
ROWS = {"sums": 3, "poems": 1, "proofs": 2}


def job(**prompts: Any) -> AlignmentJob:
    mixture = [
        {"name": name, "source": {"path": f"{name}.jsonl"}, "teacher": teacher}
        for name, teacher in TEACHERS.items()
    ]
    return AlignmentJob.model_validate(
        {
            "metadata": {"name": "several"},
            "spec": {
                "maxSteps": 1,
                "algorithm": {"onPolicyDistillation": {}},
                "policy": {"model": FROM_CONFIG},
                "teachers": [{"name": name, "model": {"path": f"/{name}"}} for name in ("math", "verse")],
                "data": {"prompts": {"mixture": mixture, **prompts}},
            },
        }
    )


def report() -> DatasetReport:
    counts = dict.fromkeys(DatasetReport.model_fields, 0)
    return DatasetReport(
        **counts | {"kind": "prompts", "source": "", "columns_left_out": [], "rows_kept": 6, "sources": ROWS}
    )


def test_each_row_has_the_teacher_of_its_source() -> None:
    for shuffle in (True, False):
        spec = job(shuffle=shuffle).spec
        math, verse = (find_teacher_sources(spec, report(), name) for name in ("math", "verse"))
        names = [f"7/{row}" for row in range(6)]
        assert [name in math for name in names] == [True, True, True, False, True, True]
        assert [name in verse for name in names] == [False, False, False, True, False, False]
