"""The routes for the responses of validations and for their comparison."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kubealign.validation_record import ValidationRecord
from kubealign_dashboard.app import create_app
from support.dashboard import ELSEWHERE, JOBS, LETTERS, SUMS, browsing, site_with_jobs
from support.memory_backend import MemoryBackend
from support.ruled_access import Person, RuledAccess, bearer

COMPARISON = f"{JOBS}/letters/comparison"


def responses(count: int, right: int, set_name: str = "") -> list[ValidationRecord]:
    """Return responses to `count` prompts, of which the first `right` are right."""
    return [
        ValidationRecord(
            row,
            f"{row}+1=",
            f"it is {row + 1 if row < right else 0}",
            {"right": float(row < right)},
            {"right": "read it"},
            set_name=set_name,
        )
        for row in range(count)
    ]


@pytest.fixture
async def site(tmp_path: Path) -> MemoryBackend:
    site = await site_with_jobs(tmp_path)
    site.validate(LETTERS, 0, *responses(25, 5))
    site.validate(LETTERS, 10, *responses(25, 20))
    site.validate(SUMS, 3, *responses(4, 0))
    site.validate(ELSEWHERE, 3, *responses(4, 0))
    return site


@pytest.fixture
async def client(site: MemoryBackend) -> AsyncIterator[httpx.AsyncClient]:
    people = {"jane": Person("jane"), "joe": Person("joe", frozenset({"default"}))}
    async with browsing(create_app(RuledAccess(site, people)), bearer("jane")) as client:
        yield client


async def compare(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get(COMPARISON, params={"step": 0, "otherStep": 10} | query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_two_steps_of_a_job_are_compared_by_prompt(client: httpx.AsyncClient) -> None:
    page = await compare(client, show="different", sort="row", limit=10)
    assert (page["left"]["step"], page["right"]["step"]) == (0, 10)
    assert (page["pairs"], page["rightHigher"], page["leftHigher"], page["equal"]) == (25, 15, 0, 10)
    assert (page["score"], page["meanDifference"], page["total"]) == ("right", 15 / 25, 15)
    first = page["items"][0]
    assert (first["prompt"], first["difference"], first["unit"]) == ("5+1=", 1.0, "word")
    assert [part for part in first["right"]["parts"] if part["changed"]] == [{"text": "6", "changed": True}]
    assert first["left"]["explanations"] == {"right": "read it"}


async def test_pages_contain_each_pair_once(client: httpx.AsyncClient) -> None:
    pages = [await compare(client, offset=offset, limit=10) for offset in (0, 10, 20, 30)]
    prompts = [item["prompt"] for page in pages for item in page["items"]]
    assert [len(page["items"]) for page in pages] == [10, 10, 5, 0]
    assert len(set(prompts)) == 25


async def test_two_jobs_are_compared_and_unpaired_responses_counted(client: httpx.AsyncClient) -> None:
    page = await compare(client, step=10, otherName="sums", otherStep=3, sort="loss")
    assert page["right"] == {"namespace": "default", "name": "sums", "step": 3}
    assert (page["pairs"], page["leftHigher"]) == (4, 4)
    assert (page["unpairedLeft"], page["unpairedRight"]) == (21, 0)


async def test_an_evaluation_set_is_selected(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    site.validate(LETTERS, 0, *responses(3, 0, "easy"), *responses(2, 0, "hard"))
    site.validate(LETTERS, 10, *responses(3, 3, "easy"), *responses(2, 1, "hard"))
    page = await compare(client)
    assert (page["sets"], page["pairs"]) == (["easy", "hard"], 5)
    page = await compare(client, set="hard")
    assert (page["sets"], page["pairs"], page["rightHigher"]) == (["easy", "hard"], 2, 1)


async def test_both_jobs_must_be_readable(client: httpx.AsyncClient) -> None:
    query = {"step": 0, "otherStep": 3, "otherName": "secret", "otherNamespace": "elsewhere"}
    assert (await client.get(COMPARISON, params=query)).status_code == 200
    refused = await client.get(COMPARISON, params=query, headers=bearer("joe"))
    assert refused.status_code == 403
    assert "elsewhere" in refused.json()["detail"]


async def test_missing_responses_and_jobs_are_named(client: httpx.AsyncClient) -> None:
    missing = await client.get(COMPARISON, params={"step": 0, "otherStep": 7})
    assert missing.status_code == 409
    assert "step 7 of default/letters is stored" in missing.json()["detail"]
    gone = await client.get(COMPARISON, params={"step": 0, "otherStep": 7, "otherName": "gone"})
    assert gone.status_code == 404
    invalid = await client.get(COMPARISON, params={"step": 0, "otherStep": 7, "show": "best"})
    assert (invalid.status_code, invalid.json()["errors"][0]["path"]) == (422, "show")


async def test_the_responses_of_a_validation_are_paged(client: httpx.AsyncClient) -> None:
    query = {"step": 10, "offset": 20, "limit": 10}
    page = (await client.get(f"{JOBS}/letters/validation", params=query)).json()
    assert (page["total"], [item["row"] for item in page["items"]]) == (25, [20, 21, 22, 23, 24])
    assert page["items"][0]["scores"] == {"right": 0.0}
    none = await client.get(f"{JOBS}/letters/validation", params={"step": 1})
    assert none.json() == {"items": [], "total": 0}
