"""The OpenAPI document: descriptions, examples, errors and authentication."""

import json
from pathlib import Path
from typing import Any

from kubealign_dashboard.app import create_app
from support.dashboard import browsing, site_with_jobs
from support.ruled_access import Person, RuledAccess, bearer


async def document(folder: Path) -> dict[str, Any]:
    access = RuledAccess(await site_with_jobs(folder), {"jane": Person("jane")})
    async with browsing(create_app(access), bearer("jane")) as client:
        item: dict[str, Any] = (await client.get("/api/v1/openapi.json")).json()
        return item


async def test_every_operation_is_documented(tmp_path: Path) -> None:
    openapi = await document(tmp_path)
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            assert operation["summary"] and operation["description"], where
            assert {"bearer": []} in operation["security"], where
            responses = operation["responses"]
            assert {"401", "403", "422", "503"} <= responses.keys(), where
            if "{name}" in path:
                assert "404" in responses, where
            for status, response in responses.items():
                kinds = set(response.get("content", {}))
                if status.startswith("2"):
                    assert kinds or status == "204", where
                else:
                    assert kinds == {"application/problem+json"}, where
            for parameter in operation.get("parameters", []):
                shown = parameter["schema"].get("examples") or parameter.get("example") is not None
                assert shown or parameter["in"] == "header" or "EventId" in parameter["name"], (
                    where,
                    parameter,
                )
            for content in operation.get("requestBody", {}).get("content", {}).values():
                assert content["example"], where


async def test_a_job_is_described_field_by_field(tmp_path: Path) -> None:
    openapi = await document(tmp_path)
    schemas = openapi["components"]["schemas"]
    assert "maxSteps" in schemas["AlignmentJobSpec"]["properties"]
    assert schemas["Problem"]["properties"].keys() >= {"type", "title", "status", "detail", "instance"}


async def test_every_reference_resolves(tmp_path: Path) -> None:
    openapi = await document(tmp_path)
    text = json.dumps(openapi)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "')[1:]}:
        target: Any = openapi
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
