"""Authentication of tokens by the API server, through TokenReview."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kubealign.errors import Forbidden, Unauthenticated, Unavailable
from kubealign_dashboard.access import Caller
from kubealign_dashboard.cluster.guess_limit import GuessLimit
from kubealign_dashboard.cluster.ttl_cache import TTLCache

TOKEN_REVIEWS_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"

# A revoked token works for at most this long.
_TTL_SECONDS = 5.0
_MAX_CACHED = 4096
# The reviews of a token are not limited for this long after it was accepted.
_KNOWN_SECONDS = 3600.0
# Kubernetes' own tokens have about a kilobyte, those of identity providers a few.
_MAX_TOKEN_LENGTH = 16384
_PARTS_OF_A_JWT = 3
_REMEDY = "get one with: kubectl create token SERVICEACCOUNT -n NAMESPACE"

Json = dict[str, Any]


class ReviewApi(Protocol):
    """The call of the API server that creates a review."""

    async def create(self, path: str, body: Json) -> Json: ...


@dataclass(frozen=True)
class ClusterCaller(Caller):
    """A caller with the attributes that authorizers may use."""

    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


class TokenReviews:
    """Reviews tokens with the dashboard's own rights.

    Valid and invalid tokens are cached separately, so that guesses only evict guesses. Tokens that were not
    accepted recently are reviewed within the limit of `guesses`.
    """

    def __init__(
        self, api: ReviewApi, clock: Callable[[], float] = time.time, guesses: GuessLimit | None = None
    ) -> None:
        self._api = api
        self._clock = clock
        self._guesses = guesses or GuessLimit()
        self._known: TTLCache[bytes, bool] = TTLCache(_MAX_CACHED)
        self._callers: TTLCache[bytes, ClusterCaller] = TTLCache(_MAX_CACHED)
        self._rejections: TTLCache[bytes, str] = TTLCache(_MAX_CACHED)

    async def authenticate(self, token: str, address: str = "") -> ClusterCaller:
        """Return the caller of a token that came from this client address.

        Raises:
            RequestRejected: Too many tokens were rejected within a minute.
            Unauthenticated: The token is invalid.
            Unavailable: It cannot be reviewed.
        """
        if not token or len(token) > _MAX_TOKEN_LENGTH or not token.isascii():
            raise Unauthenticated(f"this is not a token of the cluster: {_REMEDY}")
        digest = hashlib.sha256(token.encode()).digest()
        if (reason := self._rejections.peek(digest)) is not None:
            raise Unauthenticated(reason)
        return await self._callers.get(digest, lambda: self._limited_review(digest, token, address))

    async def _limited_review(self, digest: bytes, token: str, address: str) -> tuple[ClusterCaller, float]:
        if self._known.peek(digest):
            return await self._review(digest, token)
        self._guesses.take(address)
        is_rejected = False
        try:
            return await self._review(digest, token)
        except Unauthenticated:
            is_rejected = True
            raise
        finally:
            if not is_rejected:
                self._guesses.give_back(address)

    async def _review(self, digest: bytes, token: str) -> tuple[ClusterCaller, float]:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        try:
            answer = await self._api.create(TOKEN_REVIEWS_PATH, review)
        except (Forbidden, Unauthenticated) as error:
            # The error concerns the dashboard itself, not the caller.
            raise Unavailable(f"the dashboard's own account may not review tokens: {error}") from error
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            reason = f"the cluster does not know this token, or it has expired: {_REMEDY}"
            self._rejections.put(digest, reason, _TTL_SECONDS)
            raise Unauthenticated(reason)
        self._known.put(digest, True, _KNOWN_SECONDS)
        user = status.get("user") or {}
        expires = _expiry(token)
        caller = ClusterCaller(
            name=str(user.get("username") or ""),
            token=token,
            groups=tuple(user.get("groups") or ()),
            expires=expires,
            uid=str(user.get("uid") or ""),
            extra={key: tuple(values or ()) for key, values in (user.get("extra") or {}).items()},
        )
        return caller, _TTL_SECONDS if expires is None else min(_TTL_SECONDS, expires - self._clock())


def _expiry(token: str) -> float | None:
    """Return the expiry of an accepted token; None: it has none."""
    parts = token.split(".")
    if len(parts) != _PARTS_OF_A_JWT:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return None
