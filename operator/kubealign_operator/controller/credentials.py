"""Creates the credentials of a job: a CA whose key is discarded, role certificates, and passwords."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any

from kubealign.access.certificate_authority import CertificateAuthority
from kubealign.pod_contract import CA_FILE, NATS_PASSWORD_FILE, REDIS_CA_FILE, REDIS_PASSWORD_FILE
from kubealign_operator.kube_views.ownership import owner_uid
from kubealign_operator.planner.plan import CredentialsRequest

_PASSWORD_BYTES = 32


@dataclass(frozen=True)
class Credentials:
    """The Secret's manifest and the password that the operator itself needs."""

    manifest: dict[str, Any]
    redis_password: str


def create_credentials(need: CredentialsRequest, job: str, redis_ca: bytes | None) -> Credentials:
    """Create new credentials.

    Args:
        redis_ca: PEM of the CA of the platform's Redis, if it has its own.
    """
    authority = CertificateAuthority.create(job, need.lifetime)
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
    """Return the password of an existing Secret; None: it belongs to another uid, or has no password."""
    encoded = (secret.get("data") or {}).get(REDIS_PASSWORD_FILE)
    if owner_uid(secret["metadata"]) != uid or not isinstance(encoded, str):
        return None
    return base64.b64decode(encoded).decode()
