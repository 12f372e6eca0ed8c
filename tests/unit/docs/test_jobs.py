"""Jobs in the documentation are valid; fragments of jobs are valid within a complete job."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic.alias_generators import to_snake

from kubealign.spec.docs.job_template import job_template
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.loading.loader import parse_jobs
from support.doc_blocks import PAGES, ROOT, Block, blocks

#: Comment before a YAML block that holds no job.
NO_JOB = "not a job"
_NAMES = {field.alias or name for name, field in AlignmentJobSpec.model_fields.items()}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_job_on_the_page_is_valid(page: Path) -> None:
    wrong = []
    for block in blocks(page, "yaml"):
        if block.mark == NO_JOB:
            continue
        try:
            for document in job_documents(block):
                parse_jobs(document)
        except SpecErrors as errors:
            wrong.append(f"{block}: {errors}")
    assert not wrong, "\n".join(wrong)


def job_documents(block: Block) -> list[str]:
    """Return the jobs of a block; a fragment of a job is merged into a job of its algorithm."""
    if "kind: AlignmentJob" in block.text:
        return [block.text]
    return [within_a_job(part, block) for part in yaml.safe_load_all(block.text)]


def within_a_job(part: Any, block: Block) -> str:
    assert isinstance(part, dict), f"{block}: mark it with <!-- {NO_JOB} --> if it is none"
    given = part.get("spec", part)
    strangers = given.keys() - _NAMES - {"metadata"}
    assert not strangers, f"{block}: a job has no {strangers}; mark it with <!-- {NO_JOB} --> if it is none"
    algorithm = next(iter(given.get("algorithm", {"ppo": {}})))
    job = yaml.safe_load(job_template(to_snake(algorithm).replace("_", "-"), "shown"))
    job["spec"] |= {name: value for name, value in given.items() if name != "metadata"}
    return yaml.safe_dump(job)


def test_an_invalid_fragment_is_reported() -> None:
    block = Block(ROOT / "README.md", 1, "yaml", "algorithm: {sft: {rows: 3}}\n", "")
    with pytest.raises(SpecErrors, match="rows"):
        parse_jobs(job_documents(block)[0])
    block = Block(ROOT / "README.md", 1, "yaml", "operator: {replicas: 3}\n", "")
    with pytest.raises(AssertionError, match="mark it"):
        job_documents(block)
