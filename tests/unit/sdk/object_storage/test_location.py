"""Addresses in object storage."""

import pytest

from kubealign.object_storage.location import StorageLocation


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("s3://bucket", ("s3", "bucket", "")),
        ("gs://bucket/jobs/sums/", ("gs", "bucket", "jobs/sums")),
        ("az://container/jobs", ("az", "container", "jobs")),
    ],
)
def test_an_address_is_parsed(uri: str, parts: tuple[str, str, str]) -> None:
    location = StorageLocation.parse(uri)
    assert (location.scheme, location.bucket, location.path) == parts
    assert str(location) == uri.rstrip("/")
    assert str(location.join("a/b")) == f"{uri.rstrip('/')}/a/b"


@pytest.mark.parametrize("uri", ["hf://acme/base", "/models/base", "s3:///jobs", "bucket/jobs"])
def test_other_addresses_are_refused_with_the_allowed_schemes(uri: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{uri}' is no address .*: it must be one of s3://BUCKET/PATH, gs://"
    ):
        StorageLocation.parse(uri)
