"""Settings from the environment and their errors."""

from pathlib import Path

import pytest

from kubealign_dashboard.cluster.settings import ListenAddress, SettingsError, from_environment


def test_defaults() -> None:
    settings = from_environment({"KUBEALIGN_REDIS_HOST": "", "KUBEALIGN_DASHBOARD_PORT": "tcp://10.0.0.1:80"})
    assert settings.listen == ListenAddress(host="0.0.0.0", port=8080)
    assert settings.redis() is None
    assert settings.namespaces == ()


def test_settings_of_the_chart(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    settings = from_environment(
        {
            "KUBEALIGN_LISTEN": "[::]:8443",
            "KUBEALIGN_LISTEN_LOCAL": "127.0.0.1:8080",
            "KUBEALIGN_TLS_CERT_FILE": "/tls/tls.crt",
            "KUBEALIGN_TLS_KEY_FILE": "/tls/tls.key",
            "KUBEALIGN_NAMESPACES": "team-a, team-b",
            "KUBEALIGN_READ_ONLY": "true",
            "KUBEALIGN_REDIS_HOST": "redis.svc",
            "KUBEALIGN_REDIS_TLS": "true",
            "KUBEALIGN_REDIS_PASSWORD_FILE": str(password),
            "KUBEALIGN_REDIS_CA_FILE": "/ca.crt",
        }
    )
    assert settings.listen == ListenAddress(host="::", port=8443)
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.read_only
    redis = settings.redis()
    assert redis is not None
    assert (redis.host, redis.user, redis.password, redis.tls, redis.ca) == (
        "redis.svc",
        "dashboard",
        "secret",
        True,
        Path("/ca.crt"),
    )


@pytest.mark.parametrize(
    ("name", "value", "expected_text"),
    [
        ("KUBEALIGN_LISTEN", "8080", "HOST:PORT"),
        ("KUBEALIGN_LISTEN", "0.0.0.0:http", "HOST:PORT"),
        ("KUBEALIGN_LISTEN", "0.0.0.0:70000", "65535"),
        ("KUBEALIGN_LISTEN_LOCAL", "0.0.0.0:8080", "127.0.0.1"),
        ("KUBEALIGN_READ_ONLY", "maybe", "'maybe'"),
        ("KUBEALIGN_REDIS_PORT", "x", "'x'"),
        ("KUBEALIGN_TLS_CERT_FILE", "/tls.crt", "go together"),
        ("KUBEALIGN_LOG_LEVEL", "info", "'info'"),
        ("KUBEALIGN_REQUEST_SECONDS", "0", "greater than 0"),
    ],
)
def test_invalid_values_name_the_variable(name: str, value: str, expected_text: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        from_environment({name: value})
    assert expected_text in str(refused.value)


def test_a_missing_password_file_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    settings = from_environment({"KUBEALIGN_REDIS_HOST": "r", "KUBEALIGN_REDIS_PASSWORD_FILE": str(missing)})
    with pytest.raises(SettingsError, match=f"KUBEALIGN_REDIS_PASSWORD_FILE held '{missing}'"):
        settings.redis()
