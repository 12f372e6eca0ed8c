"""Invalid documents with one wrong field each: exactly one error, with the field's path and a remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.errors import SpecErrors
from kubealign.spec.loading.loader import load_jobs
from support.bad_specs import ALGORITHMS, BAD, bad_job, name_of

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


@pytest.mark.parametrize("bad", BAD, ids=name_of)
def test_each_invalid_field_gives_one_error_with_path_and_remedy(bad: dict[str, Any], write: Write) -> None:
    with pytest.raises(SpecErrors) as caught:
        load_jobs(write(bad_job(bad)))
    assert [error.path for error in caught.value.errors] == [bad["path"]]
    text = str(caught.value)
    for words in bad["says"]:
        assert words in text
    for jargon in ("pydantic", "Input should", "valid dict", "[type="):
        assert jargon not in text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_unchanged_jobs_are_valid(algorithm: str, document: Make, write: Write) -> None:
    (job,) = load_jobs(write(document(algorithm)))
    assert job.name == algorithm.lower()
