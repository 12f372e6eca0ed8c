"""Addresses in object storage, such as s3://bucket/path, and their patterns in a spec."""

from dataclasses import dataclass
from urllib.parse import urlsplit

#: Schemes of addresses: Amazon S3 and its compatible servers, Google Cloud Storage, Azure Blob Storage.
STORAGE_SCHEMES = ("s3", "gs", "az")

_ROOT = rf"({'|'.join(STORAGE_SCHEMES)})://[a-z0-9][-._a-z0-9]{{1,61}}[a-z0-9]"
_SEGMENT = r"[-_=+,@A-Za-z0-9][-._=+,@A-Za-z0-9]*"
_GLOB_SEGMENT = r"[-_=+,@A-Za-z0-9*][-._=+,@A-Za-z0-9*]*"
#: A bucket, or a path in it.
STORAGE_URI_PATTERN = rf"^{_ROOT}(/{_SEGMENT})*$"
#: Objects of a bucket: a name, or a glob with * in any part of the path.
STORAGE_FILES_PATTERN = rf"^{_ROOT}(/{_GLOB_SEGMENT})+$"


@dataclass(frozen=True)
class StorageLocation:
    """A bucket (a container in Azure) and a path in it, without a slash at its ends; empty: the root."""

    scheme: str
    bucket: str
    path: str

    @classmethod
    def parse(cls, uri: str) -> "StorageLocation":
        """Parse an address. Raises ValueError that names the address and the allowed schemes."""
        parts = urlsplit(uri)
        if parts.scheme not in STORAGE_SCHEMES or not parts.netloc:
            allowed = ", ".join(f"{scheme}://BUCKET/PATH" for scheme in STORAGE_SCHEMES)
            raise ValueError(f"{uri!r} is no address in object storage: it must be one of {allowed}")
        return cls(parts.scheme, parts.netloc, parts.path.strip("/"))

    def join(self, name: str) -> "StorageLocation":
        """Return the address of `name` below this one."""
        path = "/".join(part for part in (self.path, name.strip("/")) if part)
        return StorageLocation(self.scheme, self.bucket, path)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.path}" if self.path else "")
