"""Settings of the platform's administrator, passed by the Helm chart as environment variables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kubealign.access.redis_names import CLUSTER_ID_PATTERN, key_prefix
from kubealign.process_settings import RedisAccess

_PREFIX = "KUBEALIGN_"


class SettingsError(Exception):
    """The environment is invalid; the message names the variable, its value and the allowed values."""


class ListenAddress(BaseModel):
    """host:port, as [::1]:8080 or 0.0.0.0:8080."""

    model_config = ConfigDict(frozen=True)
    host: str = Field(min_length=1)
    port: int = Field(ge=0, le=65535)

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        host, colon, port = value.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise ValueError("it must be HOST:PORT")
        return {"host": host.strip("[]"), "port": int(port)}


def _split_commas(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class DashboardSettings(BaseModel):
    """Each field is a variable: `redis_host` is KUBEALIGN_REDIS_HOST. An empty one counts as unset."""

    model_config = ConfigDict(frozen=True)

    listen: ListenAddress = Field(
        ListenAddress(host="0.0.0.0", port=8080), description="Address for requests from outside the pod."
    )
    listen_local: ListenAddress | None = Field(
        None,
        description="A second address without TLS for the pod itself, used by `kubectl port-forward`.",
    )
    tls_cert_file: Path | None = Field(None, description="PEM; reloaded when it changes.")
    tls_key_file: Path | None = None
    namespaces: Annotated[tuple[str, ...], BeforeValidator(_split_commas)] = Field(
        (), description="Namespaces whose jobs are shown, separated by commas; empty: all."
    )
    read_only: bool = False
    redis_host: str | None = Field(None, description="None: no metrics are shown.")
    redis_port: int = Field(6379, ge=1, le=65535)
    redis_tls: bool = False
    redis_user: str = "dashboard"
    cluster_id: str = Field(
        "", pattern=CLUSTER_ID_PATTERN, description="Identity in a Redis of several clusters; empty: of one."
    )
    redis_password_file: Path | None = None
    redis_ca_file: Path | None = None
    kubeconfig: Path | None = Field(None, description="None: the pod's own service account.")
    request_seconds: float = Field(15.0, gt=0, le=120, description="Timeout of one call to the API server.")
    streams_per_user: int = Field(20, ge=1, le=1000, description="Open streams of one user.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @model_validator(mode="after")
    def _check_combinations(self) -> "DashboardSettings":
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("KUBEALIGN_TLS_CERT_FILE and KUBEALIGN_TLS_KEY_FILE go together")
        if self.listen_local is not None and self.listen_local.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("KUBEALIGN_LISTEN_LOCAL must be 127.0.0.1:PORT or [::1]:PORT")
        return self

    def redis(self) -> RedisAccess | None:
        """Return access to the platform's Redis.

        Raises:
            SettingsError: The password file cannot be read.
        """
        if self.redis_host is None:
            return None
        return RedisAccess(
            host=self.redis_host,
            port=self.redis_port,
            user=self.redis_user,
            password=_password(self.redis_password_file),
            prefix=key_prefix(self.cluster_id),
            tls=self.redis_tls,
            ca=self.redis_ca_file,
        )


def from_environment(environment: Mapping[str, str]) -> DashboardSettings:
    """Read the settings.

    Raises:
        SettingsError: A variable is invalid.
    """
    names = {_PREFIX + field.upper(): field for field in DashboardSettings.model_fields}
    values = {field: environment[name] for name, field in names.items() if environment.get(name, "").strip()}
    try:
        return DashboardSettings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("\n".join(_format_error(details) for details in error.errors())) from error


def _format_error(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    return f"{_PREFIX}{str(error['loc'][0]).upper()} held {error['input']!r}: {message}"


def _password(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise SettingsError(f"KUBEALIGN_REDIS_PASSWORD_FILE held {str(file)!r}: {error.strerror}") from error
