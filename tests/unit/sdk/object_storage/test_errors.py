"""Errors of obstore, as users see them."""

from pathlib import Path

import pytest
from obstore.exceptions import BaseError, GenericError, UnauthenticatedError

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import StorageError, StorageRefused, StorageUnavailable, storage_error
from kubealign.object_storage.location import StorageLocation

_URI = "az://container/jobs/a"
_SIGNED = "https://account.blob.core.windows.net/container/jobs/a?sv=2024&sig=SECRET"


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (
            GenericError(f"Error performing PUT {_SIGNED} in 2s - connection reset"),
            StorageUnavailable,
            "reset",
        ),
        (
            GenericError(f"PUT {_SIGNED} - Server returned non-2xx status code: 503 Busy: "),
            StorageUnavailable,
            "503 Busy",
        ),
        (
            GenericError(f"PUT {_SIGNED} - Server returned non-2xx status code: 429 Many: "),
            StorageUnavailable,
            "429 Many",
        ),
        (
            GenericError(f"GET {_SIGNED} - Server returned non-2xx status code: 400 Bad Request: "),
            StorageRefused,
            "400 Bad Request",
        ),
        (
            UnauthenticatedError(f"PUT {_SIGNED}: expired\n\nDebug source:\n{_SIGNED}"),
            StorageRefused,
            "expired",
        ),
        (
            GenericError("Error performing PUT http://169.254.169.254/latest/api/token in 9s - timed out"),
            StorageRefused,
            "the environment has no credentials",
        ),
    ],
)
def test_the_kind_and_the_cause_without_a_signature(
    error: BaseError, kind: type[StorageError], cause: str
) -> None:
    result = storage_error(error, "could not be written", _URI)
    assert type(result) is kind
    assert str(result).startswith(f"{_URI} could not be written: ")
    assert cause in str(result)
    assert "sig=" not in str(result)


def test_an_image_without_certificates_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(StorageRefused, match=r"no CA certificates.*SSL_CERT_FILE"):
        Bucket(StorageLocation.parse("s3://bucket/jobs/a"))
