"""Service accounts with rights and tokens, for one test."""

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from kubernetes import client

from .control_plane import ControlPlane
from .kubeconfig import write_kubeconfig

_RBAC = "rbac.authorization.k8s.io"
# The shortest lifetime that the API server grants.
_TOKEN_SECONDS = 600


def account(control_plane: ControlPlane, namespace: str, name: str, rules: list[dict[str, Any]]) -> str:
    """Create a service account with `rules` in its namespace, and return its token."""
    metadata = {"name": name, "namespace": namespace}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
    control_plane.kubectl.apply(*objects)
    return token(control_plane, namespace, name)


def token(control_plane: ControlPlane, namespace: str, name: str) -> str:
    """Request a token of a service account, as `kubectl create token` does."""
    request = client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=_TOKEN_SECONDS)
    )
    response = client.CoreV1Api(control_plane.api).create_namespaced_service_account_token(
        name, namespace, request
    )
    return str(response.status.token)


def ending_at(control_plane: ControlPlane, token: str, expires: float) -> str:
    """Return the token with another expiry, signed by the cluster.

    The API server itself issues no token that expires soon."""
    head, body, _ = token.split(".")
    claims = json.loads(_decoded(body))
    claims["exp"] = int(expires)
    claims["iat"] = claims["nbf"] = int(min(time.time(), expires)) - 60
    signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
    key = serialization.load_pem_private_key(
        (control_plane.folder / "tls" / "service-accounts.key").read_bytes(), password=None
    )
    assert isinstance(key, rsa.RSAPrivateKey)
    return f"{signed}.{_encoded(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def kubeconfig(control_plane: ControlPlane, file: Path, token: str) -> Path:
    """Write a kubeconfig with this token to `file`."""
    write_kubeconfig(file, control_plane.url, control_plane.authority.certificate, token)
    return file


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
