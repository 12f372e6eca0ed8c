"""Authentication of tokens by the API server, through TokenReview."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kubealign.client.errors import Forbidden, Unauthenticated, Unavailable
from kubealign_services.dashboard.access import Caller
from kubealign_services.dashboard.cluster.remembered import Remembered

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"

# A revoked token works for at most this long.
_SECONDS = 5.0
_MOST = 4096
# Kubernetes' own tokens have about a kilobyte, those of identity providers a few.
_LONGEST = 16384
_PARTS_OF_A_JWT = 3
_REMEDY = "get one with: kubectl create token SERVICEACCOUNT -n NAMESPACE"

Json = dict[str, Any]


class Creates(Protocol):
    """The call of the API server that creates a review."""

    async def create(self, path: str, body: Json) -> Json: ...


@dataclass(frozen=True)
class ClusterCaller(Caller):
    """A caller with the attributes that authorizers may use."""

    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


class Tokens:
    """Reviews tokens with the dashboard's own rights.

    Valid and invalid tokens are cached separately, so that guesses only evict guesses.
    """

    def __init__(self, api: Creates, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._clock = clock
        self._known: Remembered[bytes, ClusterCaller] = Remembered(_MOST)
        self._refused: Remembered[bytes, str] = Remembered(_MOST)

    async def caller(self, token: str) -> ClusterCaller:
        """Return the caller of a token.

        Raises:
            Unauthenticated: The token is invalid.
            Unavailable: It cannot be reviewed.
        """
        if not token or len(token) > _LONGEST or not token.isascii():
            raise Unauthenticated(f"this is not a token of the cluster: {_REMEDY}")
        digest = hashlib.sha256(token.encode()).digest()
        if (reason := self._refused.held(digest)) is not None:
            raise Unauthenticated(reason)
        return await self._known.get(digest, lambda: self._reviewed(digest, token))

    async def _reviewed(self, digest: bytes, token: str) -> tuple[ClusterCaller, float]:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        try:
            answer = await self._api.create(REVIEWS, review)
        except (Forbidden, Unauthenticated) as error:
            # The error concerns the dashboard itself, not the caller.
            raise Unavailable(f"the dashboard's own account may not review tokens: {error}") from error
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            reason = f"the cluster does not know this token, or it has expired: {_REMEDY}"
            self._refused.keep(digest, reason, _SECONDS)
            raise Unauthenticated(reason)
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
        return caller, _SECONDS if expires is None else min(_SECONDS, expires - self._clock())


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
