"""Static files of the web page, and Plotly from its wheel. None of them contain data of a job."""

import gzip
import hashlib
import json
import mimetypes
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.base import field_alias

PAGE_FOLDER = Path(__file__).with_name("page")
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
# Not every system knows these types, and browsers do not run a module of an unknown type.
for _type, _suffix in (("text/javascript", ".js"), ("text/css", ".css"), ("image/svg+xml", ".svg")):
    mimetypes.add_type(_type, _suffix)

page_router = APIRouter(include_in_schema=False)


class _RevalidatedFiles(StaticFiles):
    """Static files that browsers revalidate: no page mixes files of two versions after an upgrade."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = _REVALIDATE
        return response


@page_router.api_route("/", methods=["GET", "HEAD"])
@page_router.api_route("/jobs", methods=["GET", "HEAD"])
@page_router.api_route("/jobs/{place:path}", methods=["GET", "HEAD"])
async def index() -> Response:
    """Return the page for any of its views."""
    if not (PAGE_FOLDER / "index.html").is_file():
        raise HTTPException(404)
    return FileResponse(PAGE_FOLDER / "index.html", headers={"Cache-Control": _REVALIDATE})


@page_router.api_route("/favicon.ico", methods=["GET", "HEAD"])
async def favicon() -> Response:
    """Redirect: browsers request this path whatever the page says."""
    return RedirectResponse("/static/favicon.svg", 308)


@page_router.api_route("/static/js/algorithms.js", methods=["GET", "HEAD"])
async def algorithms() -> Response:
    """Return the algorithm names of the spec as a JavaScript module."""
    names = [field_alias(Algorithm, member) for member in Algorithm.model_fields]
    script = f"export const ALGORITHMS = {json.dumps(names)};\n"
    return Response(script, media_type="text/javascript", headers={"Cache-Control": _REVALIDATE})


@page_router.api_route("/static/plotly.min.js", methods=["GET", "HEAD"])
def plotly(request: Request) -> Response:
    """Return Plotly; cached forever when the URL contains its version (`?v=`)."""
    cache_control = _CACHE_FOREVER if request.query_params.get("v") == version("plotly") else _REVALIDATE
    is_gzip = "gzip" in request.headers.get("accept-encoding", "")
    body, tag = _plotly(is_gzip)
    headers = {"Cache-Control": cache_control, "ETag": tag, "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if is_gzip:
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="text/javascript", headers=headers)


def mount_page(app: FastAPI) -> None:
    """Add the routes of the web page; none where the package was installed without the page."""
    app.include_router(page_router)
    if PAGE_FOLDER.is_dir():
        app.mount("/static", _RevalidatedFiles(directory=PAGE_FOLDER), name="page")


@cache
def _plotly(packed: bool) -> tuple[bytes, str]:
    """Return the script and its entity tag: four megabytes, or one and a half when compressed."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise HTTPException(404)
    body = Path(spec.submodule_search_locations[0], "package_data", "plotly.min.js").read_bytes()
    if packed:
        body = gzip.compress(body, 6, mtime=0)
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
