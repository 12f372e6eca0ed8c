"""Kubeconfig files of test clusters."""

import base64
from pathlib import Path

import yaml


def write_kubeconfig(path: Path, server: str, authority: Path, token: str) -> None:
    """Write a kubeconfig with one context for `server` (a URL)."""
    name = "kubealign-test"
    ca = base64.b64encode(authority.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))
