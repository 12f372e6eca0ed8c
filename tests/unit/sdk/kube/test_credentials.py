"""Credentials of a kubeconfig."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from kubealign.kube.api import connect

_PLUGIN = """
import json, pathlib
count = pathlib.Path({count!r})
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
status = {{"token": f"token-{{number}}", "expirationTimestamp": {expires!r}}}
print(json.dumps(
    {{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}
))
"""


def kubeconfig(folder: Path, user: dict[str, Any]) -> Path:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ours"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(config))
    return file


def plugin(folder: Path, expires: str) -> dict[str, Any]:
    script = folder / "plugin.py"
    script.write_text(_PLUGIN.format(count=str(folder / "count"), expires=expires))
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(script)]}}


async def test_plugin_is_rerun_when_credentials_expire(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, plugin(tmp_path, "2020-01-01T00:00:00Z"))
    async with await connect(file) as api:
        assert api.namespace == "ours" and api.server == "http://127.0.0.1:1"
        first, second = await api.bearer_token(), await api.bearer_token()
    assert first != second
    assert first is not None and first.startswith("token-")


async def test_plugin_is_not_rerun_before_expiry(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, plugin(tmp_path, "2999-01-01T00:00:00Z"))
    async with await connect(file) as api:
        assert [await api.bearer_token(), await api.bearer_token()] == ["token-1", "token-1"]
    assert json.loads((tmp_path / "count").read_text()) == 1


async def test_password_is_not_a_token(tmp_path: Path) -> None:
    async with await connect(kubeconfig(tmp_path, {"username": "me", "password": "secret"})) as api:
        assert await api.bearer_token() is None
    async with await connect(kubeconfig(tmp_path, {"token": "mine"})) as api:
        assert await api.bearer_token() == "mine"
        assert await api.with_token("theirs").bearer_token() == "theirs"
