"""Makes the credentials of a job: a CA whose key nobody keeps, a certificate for each role, passwords."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any

from kubealign.pod import CA_FILE, NATS_PASSWORD_FILE, REDIS_CA_FILE, REDIS_PASSWORD_FILE
from kubealign.security.authority import Authority
from kubealign_operator.controller.resources import owner_uid
from kubealign_operator.render.rendered import CredentialsNeed

_PASSWORD_BYTES = 32


@dataclass(frozen=True)
class Credentials:
    """The Secret's manifest, and the password in it that the operator has a use for."""

    manifest: dict[str, Any]
    redis_password: str


def make(need: CredentialsNeed, job: str, redis_ca: bytes | None) -> Credentials:
    """New at each call. `redis_ca`: PEM of the CA of the platform's Redis, where it has its own."""
    authority = Authority.create(job, need.lifetime)
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    files = {
        CA_FILE: authority.certificate_pem,
        NATS_PASSWORD_FILE: secrets.token_urlsafe(_PASSWORD_BYTES).encode(),
        REDIS_PASSWORD_FILE: password.encode(),
    }
    if redis_ca is not None:
        files[REDIS_CA_FILE] = redis_ca
    for role in need.roles:
        issued = authority.issue(role, need.hosts)
        files[f"{role}.pem"] = issued.certificate_pem
        files[f"{role}-key.pem"] = issued.key_pem
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": need.metadata,
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }
    return Credentials(manifest, password)


def redis_password(secret: dict[str, Any], uid: str) -> str | None:
    """Of a Secret that was made before; None where it is not the job's with this uid, or holds none."""
    held = (secret.get("data") or {}).get(REDIS_PASSWORD_FILE)
    if owner_uid(secret["metadata"]) != uid or not isinstance(held, str):
        return None
    return base64.b64decode(held).decode()
