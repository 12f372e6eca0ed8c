"""Parity of the synchronous and the asyncio API: the same methods, parameters and documentation."""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

from kubealign.client.async_client import AsyncAlignmentClient
from kubealign.client.job import AsyncJob, Job
from kubealign.client.sync_client import AlignmentClient

#: Public names of one side only, and the reason.
ONLY_ASYNC = {"backend": "a backend is asynchronous; the synchronous client opens its own when it is created"}
ONLY_SYNC: dict[str, str] = {}
#: Methods of the client that a handle of one job lacks, and the reason.
ONLY_CLIENT = {
    **ONLY_ASYNC,
    "cluster": "creates a client",
    "local": "creates a client",
    "close": "closes the client",
    "submit": "has no job yet",
    "submit_all": "has no job yet",
    "fork": "makes another job",
    "get": "is called refresh, which updates the handle",
    "list": "returns several jobs",
    "changes": "yields new handles; wait(on_change=...) updates this one",
    "patch": "takes a document, which the handle does not hide",
}
#: Methods whose documentation differs, and the reason.
DOCUMENTED_APART = {
    "cluster": "the synchronous client connects at once, and may raise",
    "close": "the synchronous client also ends its thread",
}
#: Annotations of the asyncio API, as the synchronous API writes them.
SYNCHRONOUS = {
    "AsyncAlignmentClient": "AlignmentClient",
    "AsyncJob": "Job",
    "AsyncIterator": "Iterator",
    "Awaitable[object] | object": "object",
}

Parameter = tuple[str, str, object, str]
PAIRS = [(AlignmentClient, AsyncAlignmentClient), (Job, AsyncJob)]


def public_names(owner: type) -> set[str]:
    """Return the public attributes of a class, and its constructor."""
    return {"__init__", *(name for name in dir(owner) if not name.startswith("_"))}


def annotation(value: object) -> str:
    """Return an annotation as text without modules, in the words of the synchronous API."""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)
    for asynchronous, synchronous in SYNCHRONOUS.items():
        text = text.replace(asynchronous, synchronous)
    return text


def signature(method: Callable[..., Any]) -> tuple[list[Parameter], str]:
    """Return name, kind, default and annotation of each parameter, and the annotation of the result."""
    inspected = inspect.signature(method)
    parameters = [
        (each.name, each.kind.description, each.default, annotation(each.annotation))
        for each in inspected.parameters.values()
    ]
    return parameters, annotation(inspected.return_annotation)


def common_methods(synchronous: type, asynchronous: type) -> list[str]:
    names = public_names(synchronous) & public_names(asynchronous)
    return sorted(name for name in names if callable(getattr(synchronous, name)))


METHODS = [(*pair, name) for pair in PAIRS for name in common_methods(*pair)]


@pytest.mark.parametrize(("synchronous", "asynchronous"), PAIRS)
def test_both_sides_have_the_same_public_names(synchronous: type, asynchronous: type) -> None:
    only_async = public_names(asynchronous) - public_names(synchronous)
    assert only_async <= ONLY_ASYNC.keys()
    assert public_names(synchronous) - public_names(asynchronous) <= ONLY_SYNC.keys()


def test_exceptions_are_still_needed() -> None:
    assert ONLY_ASYNC.keys() <= public_names(AsyncAlignmentClient) - public_names(AlignmentClient)
    assert ONLY_SYNC.keys() <= public_names(AlignmentClient) - public_names(AsyncAlignmentClient)
    assert ONLY_CLIENT.keys() <= public_names(AsyncAlignmentClient) - public_names(AsyncJob)


@pytest.mark.parametrize(("synchronous", "asynchronous", "name"), METHODS)
def test_a_method_has_the_same_signature_on_both_sides(
    synchronous: type, asynchronous: type, name: str
) -> None:
    assert signature(getattr(synchronous, name)) == signature(getattr(asynchronous, name))


def test_overloads_are_the_same() -> None:
    for name in common_methods(AlignmentClient, AsyncAlignmentClient):
        expected = [signature(each) for each in get_overloads(getattr(AsyncAlignmentClient, name))]
        assert [signature(each) for each in get_overloads(getattr(AlignmentClient, name))] == expected, name
    assert get_overloads(AsyncAlignmentClient.submit)


@pytest.mark.parametrize(("client", "handle"), [(AlignmentClient, Job), (AsyncAlignmentClient, AsyncJob)])
def test_a_handle_has_the_methods_of_its_client_without_the_job(client: type, handle: type) -> None:
    names = {name for name in public_names(client) - {"__init__"} if callable(getattr(client, name))}
    assert names - public_names(handle) == ONLY_CLIENT.keys() & names
    for name in names & public_names(handle):
        parameters, result = signature(getattr(client, name))
        expected = [each for each in parameters if each[0] not in ("name", "namespace")]
        assert signature(getattr(handle, name)) == (expected, result), name


@pytest.mark.parametrize("name", common_methods(AlignmentClient, AsyncAlignmentClient))
def test_long_documentation_is_written_once(name: str) -> None:
    if name in DOCUMENTED_APART or name == "__init__":
        return
    documented = inspect.getdoc(getattr(AsyncAlignmentClient, name)) or ""
    summary, _, details = documented.partition("\n\n")
    expected = f"{summary}\n\nSee `AsyncAlignmentClient.{name}`." if details else summary
    assert inspect.getdoc(getattr(AlignmentClient, name)) == expected
