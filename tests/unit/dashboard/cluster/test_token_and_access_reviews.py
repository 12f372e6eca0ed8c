"""Token reviews and access reviews."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from kubealign.client.errors import Forbidden, Unauthenticated, Unavailable
from kubealign_dashboard.access import Caller
from kubealign_dashboard.cluster.access_reviews import AccessReviews
from kubealign_dashboard.cluster.guess_limit import GuessLimit, GuessRates
from kubealign_dashboard.cluster.token_reviews import ClusterCaller, TokenReviews
from kubealign_dashboard.web.problems import RequestRejected

Json = dict[str, Any]
USER = {"username": "ann", "uid": "7", "groups": ["devs"], "extra": {"scopes": ["jobs"]}}


class Server:
    """A review API with scripted answers that records the requests."""

    def __init__(self, answer: Callable[[Json], Json]) -> None:
        self.asked: list[Json] = []
        self._answer = answer

    async def create(self, path: str, body: Json) -> Json:
        self.asked.append(body["spec"])
        return {"status": self._answer(body["spec"])}


def jwt(**claims: Any) -> str:
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{text}.c2ln"


def known(spec: Json) -> Json:
    return {"authenticated": True, "user": USER}


async def test_a_token_is_reviewed_once() -> None:
    server = Server(known)
    tokens = TokenReviews(server)
    callers = [await tokens.authenticate("plain") for _ in range(3)]
    assert server.asked == [{"token": "plain"}]
    assert callers[0] == ClusterCaller("ann", "plain", ("devs",), None, "7", {"scopes": ("jobs",)})
    assert "plain" not in repr(callers[0])


async def test_a_token_is_not_cached_beyond_its_expiry() -> None:
    server = Server(known)
    tokens = TokenReviews(server, clock=lambda: 100.0)
    ended = jwt(exp=100)
    assert (await tokens.authenticate(ended)).expires == 100.0
    await tokens.authenticate(ended)
    assert len(server.asked) == 2
    lasting = jwt(exp=200)
    await tokens.authenticate(lasting)
    await tokens.authenticate(lasting)
    assert len(server.asked) == 3


@pytest.mark.parametrize("text", ["a.b", "a.!.c", "a.e30.c", jwt(exp="soon"), jwt(exp=None)])
async def test_an_unreadable_expiry_is_ignored(text: str) -> None:
    assert (await TokenReviews(Server(known)).authenticate(text)).expires is None


async def test_a_rejected_token_is_cached() -> None:
    server = Server(lambda spec: {"authenticated": False, "error": "internal words"})
    tokens = TokenReviews(server)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="kubectl create token") as refused:
            await tokens.authenticate("guess")
        assert "internal" not in str(refused.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize("token", ["", "x" * 20000, "é"])
async def test_malformed_tokens_are_not_reviewed(token: str) -> None:
    server = Server(known)
    with pytest.raises(Unauthenticated):
        await TokenReviews(server).authenticate(token)
    assert not server.asked


async def test_guessed_tokens_cause_a_limited_number_of_reviews() -> None:
    """The address of the guesses is limited; other addresses and tokens that were accepted are not."""
    now = 0.0
    server = Server(lambda spec: known(spec) if spec["token"].startswith("good") else {})
    limit = GuessLimit(GuessRates(per_address=5, total=8), clock=lambda: now)
    tokens = TokenReviews(server, guesses=limit)
    for number in range(20):
        await tokens.authenticate(f"good{number}", "10.0.0.1")

    async def guess(number: int, address: str) -> bool:
        """Return False when the guess is not reviewed."""
        try:
            await tokens.authenticate(f"guess{number}", address)
        except Unauthenticated:
            return True
        except RequestRejected as refused:
            assert refused.status == 429
            return False
        raise AssertionError("a guess was accepted")

    before = len(server.asked)
    concurrent = await asyncio.gather(*(guess(number, "10.0.0.1") for number in range(30)))
    assert sum(concurrent) == 5
    assert len(server.asked) == before + 5
    with pytest.raises(RequestRejected, match=r"more than 5 tokens from 10\.0\.0\.1"):
        await tokens.authenticate("good-but-new", "10.0.0.1")
    assert (await tokens.authenticate("good-but-new", "10.0.0.2")).name == "ann"
    assert (await tokens.authenticate("good-but-new", "10.0.0.1")).name == "ann"
    assert [await guess(100 + number, f"10.0.1.{number}") for number in range(5)] == [True] * 3 + [False] * 2
    now = 12.0
    assert await guess(200, "10.0.0.1")
    assert not await guess(201, "10.0.0.1")


async def test_a_known_token_is_reviewed_during_a_flood_of_guesses() -> None:
    server = Server(lambda spec: known(spec) if spec["token"] == jwt(exp=100) else {})
    tokens = TokenReviews(server, clock=lambda: 100.0, guesses=GuessLimit(GuessRates(per_address=1)))
    await tokens.authenticate(jwt(exp=100), "10.0.0.1")
    with pytest.raises(Unauthenticated):
        await tokens.authenticate("guess", "10.0.0.1")
    before = len(server.asked)
    await tokens.authenticate(jwt(exp=100), "10.0.0.1")
    assert len(server.asked) == before + 1, "its result was not cached"


async def test_missing_rights_of_the_dashboard_are_not_blamed_on_the_caller() -> None:
    def refuses(spec: Json) -> Json:
        raise Forbidden("you may not create tokenreviews")

    with pytest.raises(Unavailable, match="own account"):
        await TokenReviews(Server(refuses)).authenticate("good")
    with pytest.raises(Unavailable, match="own account"):
        await AccessReviews(Server(refuses)).is_allowed(Caller("ann", "t"), "get", "team")


async def test_the_review_contains_all_caller_attributes() -> None:
    server = Server(lambda spec: {"allowed": True})
    caller = ClusterCaller("ann", "t", ("devs",), None, "7", {"scopes": ("jobs",)})
    rights = AccessReviews(server)
    await rights.authorize(caller, "patch", "team", "sums", "alignmentjobs/scale")
    await rights.authorize(caller, "list", None, "", "events")
    await rights.authorize(caller, "get", "team", "", "pods/log")
    first, second, third = server.asked
    assert first == {
        "user": "ann",
        "uid": "7",
        "groups": ["devs"],
        "extra": {"scopes": ["jobs"]},
        "resourceAttributes": {
            "verb": "patch",
            "group": "kubealign.dev",
            "resource": "alignmentjobs",
            "subresource": "scale",
            "namespace": "team",
            "name": "sums",
        },
    }
    assert (second["resourceAttributes"]["group"], second["resourceAttributes"]["namespace"]) == (
        "events.k8s.io",
        "",
    )
    assert (third["resourceAttributes"]["group"], third["resourceAttributes"]["subresource"]) == ("", "log")


async def test_a_right_is_cached_per_caller() -> None:
    server = Server(lambda spec: {"allowed": spec["user"] == "ann" and "devs" in spec["groups"]})
    rights = AccessReviews(server)
    ann = ClusterCaller("ann", "t", ("devs",), None, "7", {})
    for other in (
        ClusterCaller("bob", "t", ("devs",), None, "7", {}),
        ClusterCaller("ann", "t", (), None, "7", {}),
    ):
        assert await rights.is_allowed(ann, "get", "team")
        assert not await rights.is_allowed(other, "get", "team")
        with pytest.raises(Forbidden, match=r"may not get alignmentjobs sums in namespace team"):
            await rights.authorize(other, "get", "team", "sums", "alignmentjobs")
    scoped = ClusterCaller("ann", "t", ("devs",), None, "7", {"scopes": ("other",)})
    before = len(server.asked)
    await rights.is_allowed(scoped, "get", "team")
    await rights.is_allowed(ann, "get", "team")
    assert len(server.asked) == before + 1


async def test_denied_overrides_allowed() -> None:
    server = Server(lambda spec: {"allowed": True, "denied": True})
    assert not await AccessReviews(server).is_allowed(Caller("ann", "t"), "get", "team")


async def test_the_right_to_scrape_is_that_of_the_path_metrics() -> None:
    server = Server(
        lambda spec: {"allowed": "nonResourceAttributes" in spec and spec["user"] == "prometheus"}
    )
    rights = AccessReviews(server)
    scraper = ClusterCaller("prometheus", "token", ("monitoring",), None, "7", {"scopes": ("metrics",)})
    for _ in range(3):
        await rights.authorize_metrics(scraper)
    assert server.asked == [
        {
            "user": "prometheus",
            "groups": ["monitoring"],
            "uid": "7",
            "extra": {"scopes": ["metrics"]},
            "nonResourceAttributes": {"verb": "get", "path": "/metrics"},
        }
    ]
    # A right on the path is no right on jobs, and the cached review does not answer for one.
    assert not await rights.is_allowed(scraper, "get", "team", "one")
    with pytest.raises(Forbidden, match=r"ann may not get /metrics: bind .* nonResourceURLs \[/metrics\]"):
        await rights.authorize_metrics(Caller("ann", "token"))
