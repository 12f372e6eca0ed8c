"""Service accounts of a test's own, with rights and tokens."""

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
# The shortest that the API server gives.
_TOKEN_SECONDS = 600


def account(control_plane: ControlPlane, namespace: str, name: str, rules: list[dict[str, Any]]) -> str:
    """Make an account that may do this in its namespace. Its token."""
    metadata = {"name": name, "namespace": namespace}
    made: list[dict[str, Any]] = [
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
    control_plane.kubectl.apply(*made)
    return token(control_plane, namespace, name)


def token(control_plane: ControlPlane, namespace: str, name: str) -> str:
    """As `kubectl create token` gets it."""
    request = client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=_TOKEN_SECONDS)
    )
    made = client.CoreV1Api(control_plane.api).create_namespaced_service_account_token(
        name, namespace, request
    )
    return str(made.status.token)


def ending_at(control_plane: ControlPlane, token: str, expires: float) -> str:
    """The same token with another end, signed by the cluster: the API server gives none that ends soon."""
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
    """A kubeconfig with this token."""
    write_kubeconfig(file, control_plane.url, control_plane.authority.certificate, token)
    return file


def _encoded(held: bytes) -> str:
    return base64.urlsafe_b64encode(held).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
