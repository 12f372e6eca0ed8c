"""Errors of object storage. Each names the operation, the object and the cause."""

import re

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S*")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
#: Address of the metadata service, which is asked where the environment has no credentials.
_METADATA_ADDRESS = "169.254.169.254"
_NO_CERTIFICATES = "No CA certificates were loaded"
_MAX_CAUSE = 300


class StorageError(Exception):
    """Object storage could not do what was asked."""


class StorageUnavailable(StorageError):
    """The storage did not answer, or not in time, after all retries: the same call may succeed later."""


class StorageRefused(StorageError):
    """The storage refuses the request: credentials, permissions, a missing bucket or a wrong setting."""


class ObjectMissing(StorageError):
    """The object does not exist."""


class ObjectExists(StorageError):
    """The object exists already, and only a new one was to be created."""


class ObjectCorrupted(StorageError):
    """An object, or a manifest, is not what was published."""


def storage_error(error: Exception, action: str, uri: str) -> StorageError:
    """Return the error of a call of obstore.

    Args:
        action: The operation in the third person, such as "could not be read".
    """
    text = str(error)
    status = _STATUS.search(text)
    code = int(status[1]) if status else None
    message = f"{uri} {action}: {_cause(text)}"
    name = type(error).__name__
    if isinstance(error, FileNotFoundError):
        return StorageRefused(message) if "NoSuchBucket" in text else ObjectMissing(message)
    if name in ("AlreadyExistsError", "PreconditionError"):
        return ObjectExists(message)
    if _METADATA_ADDRESS in text:
        return StorageRefused(
            f"{uri} {action}: the environment has no credentials, and no metadata service provides them: set "
            "those of the storage, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if _NO_CERTIFICATES in text:
        return StorageRefused(
            f"{uri} {action}: the system has no CA certificates: install the package ca-certificates in the "
            "image, or name a file of them in SSL_CERT_FILE"
        )
    if name in ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError", "InvalidPathError"):
        return StorageRefused(message)
    if code is not None and 400 <= code < 500 and code not in (408, 429):
        return StorageRefused(message)
    return StorageUnavailable(message)


def _cause(text: str) -> str:
    """Return the server's code and message, else the first line of an error."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        return code[1] + (f" ({message[1]})" if message else "")
    # The query of an address may be a signature (Azure's SAS), which is a credential.
    return _QUERY.sub(r"\1", text.partition("\n")[0])[:_MAX_CAUSE]
