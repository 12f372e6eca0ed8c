"""The page's static files: media types, caching and host check."""

import gzip
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from kubealign_dashboard.app import create_app
from kubealign_dashboard.page_files import PAGE_FOLDER
from support.dashboard import browsing, site_with_jobs
from support.ruled_access import RuledAccess


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(RuledAccess(await site_with_jobs(tmp_path), {}), hosts=["127.0.0.1", "localhost", "::1"])
    async with browsing(app) as client:
        yield client


async def test_the_page_is_served_for_each_of_its_urls(client: httpx.AsyncClient) -> None:
    for path in ("/", "/jobs", "/jobs/default/sums"):
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_files_have_executable_media_types(client: httpx.AsyncClient) -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    seen = 0
    for file in PAGE_FOLDER.rglob("*"):
        if file.suffix in types:
            answer = await client.get(f"/static/{file.relative_to(PAGE_FOLDER)}")
            assert answer.headers["content-type"].startswith(types[file.suffix])
            assert answer.headers["cache-control"] == "no-cache"
            again = await client.get(answer.request.url, headers={"If-None-Match": answer.headers["etag"]})
            assert again.status_code == 304
            seen += 1
    assert seen
    assert (await client.get("/static/%2e%2e/access.py")).status_code == 404


async def test_plotly_comes_from_its_wheel(client: httpx.AsyncClient) -> None:
    path = "/static/plotly.min.js"
    plain = await client.get(path, headers={"Accept-Encoding": "identity"})
    assert plain.headers["content-type"].startswith("text/javascript")
    assert b"plotly.js" in plain.content[:200]
    packed = await client.get(path, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert len(gzip.compress(plain.content, 6)) < len(plain.content) / 2
    assert packed.headers["etag"] != plain.headers["etag"]
    again = await client.get(
        path, headers={"If-None-Match": packed.headers["etag"], "Accept-Encoding": "gzip"}
    )
    assert again.status_code == 304
    versioned = await client.get(path, params={"v": version("plotly")})
    assert "immutable" in versioned.headers["cache-control"]
    assert (await client.get(path, params={"v": "1"})).headers["cache-control"] == "no-cache"


async def test_unknown_host_names_are_rejected(client: httpx.AsyncClient) -> None:
    for host, status in (
        ("127.0.0.1:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8000", 421),
        ("", 421),
    ):
        answer = await client.get("/healthz", headers={"Host": host})
        assert answer.status_code == status, host
