"""Documents that users send to others contain no secrets."""

from typing import Any

import pytest

from kubealign.diagnostics.redaction import REMOVED, redact


@pytest.mark.parametrize(
    ("name", "value"),
    [("WANDB_API_KEY", REMOVED), ("MY_SETTING", REMOVED), ("NCCL_DEBUG", "secret"), ("HF_HOME", "secret")],
)
def test_values_of_variables_are_removed_but_for_those_of_libraries(name: str, value: str) -> None:
    pod = {"spec": {"containers": [{"name": "main", "env": [{"name": name, "value": "secret"}]}]}}
    redacted: Any = redact(pod)
    assert redacted["spec"]["containers"][0]["env"] == [{"name": name, "value": value}]
    assert pod["spec"]["containers"][0]["env"] == [{"name": name, "value": "secret"}]


def test_references_to_secrets_stay() -> None:
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert redact([reference]) == [reference]


def test_earlier_versions_of_an_object_are_removed() -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": '{"env": "secret"}', "team": "a"}
    assert redact({"annotations": annotations})["annotations"]["team"] == "a"
    assert "secret" not in str(redact({"annotations": annotations}))


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("https://user:token@git.example/repo", f"https://{REMOVED}@git.example/repo"),
        ("redis://:pass@host:6379", f"redis://{REMOVED}@host:6379"),
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("user@example.org", "user@example.org"),
        ("s3://bucket/key", "s3://bucket/key"),
    ],
)
def test_credentials_in_urls_are_removed(text: str, redacted: str) -> None:
    assert redact({"url": text}) == {"url": redacted}
