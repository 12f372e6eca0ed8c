"""Telemetry source over a dashboard's REST API: metrics, samples and heartbeats."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import quote, urlencode, urlsplit

from kubealign.client.errors import (
    Conflict,
    Forbidden,
    JobInvalid,
    JobNotFound,
    KubealignError,
    NotPossible,
    Unauthenticated,
    Unavailable,
)
from kubealign.client.records import JobRef
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.validation_record import ValidationRecord

if TYPE_CHECKING:
    import aiohttp

API_PREFIX = "/api/v1"
#: The API server's Service proxy drops the Authorization header, but passes this one on.
TOKEN_HEADER = "X-Kubealign-Token"
_TIMEOUT_SECONDS = 30.0
#: Largest page sizes of the API.
_MAX_STEPS, _MAX_SAMPLES = 5000, 500

Json = dict[str, Any]
_ERRORS: Mapping[int, type[KubealignError]] = {
    HTTPStatus.UNAUTHORIZED: Unauthenticated,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: JobNotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.UNPROCESSABLE_ENTITY: JobInvalid,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
}


class DashboardTransport(Protocol):
    """Sends GET requests to a dashboard. `path` begins with /api/v1. Raises a KubealignError."""

    async def read(self, path: str, query: Mapping[str, str | int]) -> Json: ...

    async def close(self) -> None: ...


class HttpDashboard:
    """Dashboard at an HTTP address."""

    def __init__(self, url: str, token: str | None) -> None:
        """Create the client. Raises NotPossible for an address that is not an HTTP URL."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise NotPossible(f"the dashboard's address must be http://HOST or https://HOST, but is {url!r}")
        self._url = url.rstrip("/")
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def read(self, path: str, query: Mapping[str, str | int]) -> Json:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            headers = {"Accept": "application/json"}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=True)
        url = f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                return parse_response(response.status, await response.read(), f"the dashboard at {self._url}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the dashboard at {self._url} does not respond: {reason}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class DashboardTelemetry:
    """TelemetrySource over a dashboard; must be closed."""

    def __init__(self, url: str, token: str | None) -> None:
        """Create the source for the dashboard at `url`, which identifies the caller by `token`."""
        self._transport: DashboardTransport = HttpDashboard(url, token)

    @classmethod
    def over_transport(cls, dashboard: DashboardTransport) -> Self:
        """Create the source over another transport."""
        instance = cls.__new__(cls)
        instance._transport = dashboard
        return instance

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        response = await self._transport.read(
            f"{_job_path(ref)}/metrics", {"after": after, "limit": min(count, _MAX_STEPS)}
        )
        return [_to_step_metrics(item) for item in response.get("items") or ()]

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        query: dict[str, str | int] = {"after": after, "limit": min(count, _MAX_SAMPLES)}
        if step is not None:
            query["step"] = step
        if newest:
            query["newest"] = "true"
        response = await self._transport.read(f"{_job_path(ref)}/samples", query)
        return [_to_sample(item) for item in response.get("items") or ()]

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        records: list[ValidationRecord] = []
        while True:
            query = {"step": step, "offset": len(records), "limit": _MAX_SAMPLES}
            response = await self._transport.read(f"{_job_path(ref)}/validation", query)
            items = response.get("items") or ()
            records += [_to_validation_record(item) for item in items]
            if not items or len(records) >= int(response.get("total") or 0):
                return records

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        if not processes:
            return {}
        response = await self._transport.read(f"{_job_path(ref)}/roles", {})
        requested = set(processes)
        return {
            str(item["name"]): item["says"]
            for item in response.get("items") or ()
            if item.get("name") in requested and item.get("says")
        }

    async def close(self) -> None:
        await self._transport.close()


def parse_response(status: int, body: bytes, source: str) -> Json:
    """Return the JSON object of a response.

    Raises the KubealignError for an unsuccessful response, with the detail of its problem document (RFC
    9457).
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if status < HTTPStatus.MULTIPLE_CHOICES:
        if not isinstance(document, dict):
            raise Unavailable(f"{source} did not return a JSON object: is it a kubealign dashboard?")
        return document
    problem = document if isinstance(document, dict) else {}
    text = str(problem.get("detail") or problem.get("title") or problem.get("message") or f"HTTP {status}")
    kind = _ERRORS.get(status)
    if kind is None:
        kind = Unavailable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else NotPossible
    raise kind(f"{source}: {text}")


def _job_path(ref: JobRef) -> str:
    return f"{API_PREFIX}/namespaces/{quote(ref.namespace, safe='')}/alignmentjobs/{quote(ref.name, safe='')}"


def _to_step_metrics(item: Json) -> StepMetrics:
    # JSON has no NaN and no infinity: null stands for a non-finite value.
    values = {
        str(name): float("nan") if value is None else float(value)
        for name, value in (item.get("values") or {}).items()
    }
    return StepMetrics(str(item["entry"]), int(item["step"]), int(item.get("fence") or 0), values)


def _to_sample(item: Json) -> SampleRecord:
    reward = item.get("reward")
    return SampleRecord(
        entry=str(item["entry"]),
        step=int(item["step"]),
        prompt=str(item.get("prompt") or ""),
        response=str(item.get("response") or ""),
        reward=None if reward is None else float(reward),
        rewards=_to_scores(item.get("rewards")),
        explanations={str(name): str(text) for name, text in (item.get("explanations") or {}).items()},
        weight_version=int(item.get("weightVersion") or 0),
        truncated=bool(item.get("truncated")),
        group_id=str(item.get("groupId") or ""),
        purpose=str(item.get("purpose") or ""),
        tokens=tuple(str(token) for token in item.get("tokens") or ()),
        token_values={
            str(name): tuple(None if value is None else float(value) for value in values)
            for name, values in (item.get("tokenValues") or {}).items()
        },
    )


def _to_validation_record(item: Json) -> ValidationRecord:
    return ValidationRecord(
        row=int(item.get("row", -1)),
        prompt=str(item.get("prompt") or ""),
        response=str(item.get("response") or ""),
        scores=_to_scores(item.get("scores")),
        explanations={str(name): str(text) for name, text in (item.get("explanations") or {}).items()},
        truncated=bool(item.get("truncated")),
        set_name=str(item.get("set") or ""),
        is_shortened=bool(item.get("shortened")),
    )


def _to_scores(scores: Any) -> dict[str, float | None]:
    return {str(name): None if value is None else float(value) for name, value in (scores or {}).items()}
