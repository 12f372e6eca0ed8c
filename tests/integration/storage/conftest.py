"""Fixtures of a real S3 server, one for the whole session with a prefix for each test."""

import uuid
from collections.abc import Iterator

import pytest

from cluster.support.programs import ProgramMissing
from kubealign.object_storage.location import StorageLocation
from support.s3_server import BUCKET, FaultyStorageProxy, S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running S3 server. Skips with the reason where it has not been built."""
    try:
        with S3Server(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except ProgramMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStorageProxy]:
    """A proxy that this process's clients, and its children, reach the server through."""
    with FaultyStorageProxy(s3) as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def location() -> StorageLocation:
    """An address that no other test uses."""
    return StorageLocation("s3", BUCKET, f"test-{uuid.uuid4().hex[:8]}")
