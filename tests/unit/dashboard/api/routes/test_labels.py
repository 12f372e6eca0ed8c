"""The routes for labels of people."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kubealign.validation_record import ValidationRecord
from kubealign_dashboard.app import create_app
from kubealign_dashboard.web.authentication import TOKEN_COOKIE
from support.dashboard import JOBS, LETTERS, SUMS, browsing, site_with_jobs
from support.memory_backend import MemoryBackend
from support.ruled_access import Person, RuledAccess, bearer

LABELS = f"{JOBS}/letters/labels"


def responses(text: str, count: int = 3, **fields: Any) -> list[ValidationRecord]:
    return [ValidationRecord(row, f"p{row}", f"{text} {row}", {"a": 1.0}, **fields) for row in range(count)]


@pytest.fixture
async def site(tmp_path: Path) -> MemoryBackend:
    site = await site_with_jobs(tmp_path)
    site.validate(LETTERS, 0, *responses("old"))
    site.validate(LETTERS, 10, *responses("new"))
    site.validate(SUMS, 3, *responses("old"))
    return site


@pytest.fixture
def access(site: MemoryBackend) -> RuledAccess:
    reading = Person("guest", verbs=frozenset({"get", "list"}))
    return RuledAccess(site, {"jane": Person("jane"), "joe": Person("joe"), "guest": reading})


@pytest.fixture
async def client(access: RuledAccess) -> AsyncIterator[httpx.AsyncClient]:
    async with browsing(create_app(access), bearer("jane")) as client:
        yield client


async def pairs(client: httpx.AsyncClient, job: str = "letters", **query: Any) -> list[dict[str, Any]]:
    defaults = {"step": 0, "otherStep": 10, "sort": "row"}
    answer = await client.get(f"{JOBS}/{job}/comparison", params=defaults | query)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def pair_request(pair: dict[str, Any], verdict: str | None, **fields: Any) -> dict[str, Any]:
    other = {"namespace": "default", "name": "letters", "step": 10}
    return {"verdict": verdict, "promptId": pair["id"], "step": 0, "other": other} | fields


async def exported(client: httpx.AsyncClient, form: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{LABELS}/export", params={"format": form})
    assert answer.headers["content-disposition"] == f'attachment; filename="letters-{form}.jsonl"'
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_pair_is_labelled_changed_and_withdrawn(client: httpx.AsyncClient) -> None:
    first, second, third = await pairs(client)
    stored = await client.post(LABELS, json=pair_request(first, "left", reason="shorter"))
    assert stored.status_code == 201, stored.text
    label = stored.json()
    assert (label["subject"], label["author"], label["reason"]) == (first["subject"], "jane", "shorter")
    assert (label["prompt"], label["left"]["response"], label["right"]["response"]) == (
        "p0",
        "old 0",
        "new 0",
    )
    await client.post(LABELS, json=pair_request(second, "right"))
    await client.post(LABELS, json=pair_request(third, "bothBad"))
    # The last label of a subject counts, whoever gave it.
    await client.post(LABELS, json=pair_request(first, "right"), headers=bearer("joe"))
    items = (await client.get(LABELS)).json()["items"]
    assert [(item["verdict"], item["author"]) for item in items] == [
        ("right", "jane"),
        ("bothBad", "jane"),
        ("right", "joe"),
    ]
    assert await exported(client, "preferences") == [
        {"prompt": "p1", "chosen": "new 1", "rejected": "old 1"},
        {"prompt": "p0", "chosen": "new 0", "rejected": "old 0"},
    ]
    assert await exported(client, "unpaired") == [
        {"prompt": "p2", "response": "old 2", "label": False},
        {"prompt": "p2", "response": "new 2", "label": False},
    ]
    await client.post(LABELS, json=pair_request(first, None))
    assert [item["prompt"] for item in (await client.get(LABELS)).json()["items"]] == ["p1", "p2"]


async def test_swapped_sides_are_the_same_subject(client: httpx.AsyncClient) -> None:
    first = (await pairs(client))[0]
    swapped = (await pairs(client, step=10, otherStep=0))[0]
    other_job = (await pairs(client, otherName="sums", otherStep=3))[0]
    assert first["subject"] == swapped["subject"]
    assert first["left"]["subject"] == swapped["right"]["subject"]
    assert len({first["subject"], other_job["subject"], first["left"]["subject"]}) == 3


async def test_one_response_is_wrong(client: httpx.AsyncClient) -> None:
    first = (await pairs(client))[0]
    request = {"verdict": "wrong", "promptId": first["id"], "step": 10, "reason": "no"}
    label = (await client.post(LABELS, json=request)).json()
    assert (label["subject"], label["right"]) == (first["right"]["subject"], None)
    assert await exported(client, "preferences") == []
    assert await exported(client, "unpaired") == [{"prompt": "p0", "response": "new 0", "label": False}]
    (whole,) = await exported(client, "labels")
    assert (whole["reason"], whole["author"], whole["left"]["step"]) == ("no", "jane", 10)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"verdict": "wrong"}, 422, "not one of those of a pair: null, left, right, bothGood, bothBad"),
        ({"verdict": "left", "other": None}, 422, "not one of those of one response: null, wrong"),
        ({"verdict": "best"}, 422, "left"),
        ({"reason": "x" * 2001}, 422, "2000"),
        ({"promptId": "0" * 32}, 409, "is stored for step 0 of default/letters"),
        ({"step": 5}, 409, "is stored for step 5"),
        ({"other": {"namespace": "default", "name": "gone", "step": 1}}, 404, "gone"),
        ({"other": {"namespace": "default", "name": "sums", "step": 3}}, 422, "the responses are equal"),
        ({"text": "x"}, 422, "text"),
    ],
)
async def test_invalid_labels_are_refused(
    client: httpx.AsyncClient, changes: dict[str, Any], status: int, words: str
) -> None:
    first = (await pairs(client))[0]
    answer = await client.post(LABELS, json=pair_request(first, "left") | changes)
    assert answer.status_code == status
    assert words in answer.text
    assert (await client.get(LABELS)).json() == {"items": []}


async def test_a_response_without_its_middle_is_not_labelled(
    client: httpx.AsyncClient, site: MemoryBackend
) -> None:
    site.validate(LETTERS, 10, *responses("new", is_shortened=True))
    first = (await pairs(client))[0]
    answer = await client.post(LABELS, json=pair_request(first, "left"))
    assert answer.status_code == 409
    assert "only its two ends are stored here" in answer.json()["detail"]


async def test_a_label_needs_the_right_to_change_the_job(
    client: httpx.AsyncClient, access: RuledAccess
) -> None:
    first = (await pairs(client))[0]
    request = pair_request(first, "left")
    refused = await client.post(LABELS, json=request, headers=bearer("guest"))
    assert refused.status_code == 403
    # A cookie alone, as another site could make a browser send it.
    async with browsing(create_app(access)) as browser:
        cookie = {"Cookie": f"{TOKEN_COOKIE}=jane"}
        assert (await browser.post(LABELS, json=request, headers=cookie)).status_code == 403
        ours = cookie | {"X-Requested-With": "kubealign"}
        assert (await browser.post(LABELS, json=request, headers=ours)).status_code == 201
    access.read_only = True
    refused = await client.post(LABELS, json=request)
    assert (refused.status_code, "read-only" in refused.text) == (403, True)
    # Reading needs no more than the right to read the job.
    assert len((await client.get(LABELS, headers=bearer("guest"))).json()["items"]) == 1
