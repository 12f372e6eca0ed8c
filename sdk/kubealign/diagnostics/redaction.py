"""Removal of what may be secret from documents that users send to others."""

from collections.abc import Mapping
from typing import Any

REMOVED = "(removed)"
#: Environment variables whose values say how libraries are configured.
_HARMLESS_PREFIXES = ("KUBEALIGN_", "CUDA_", "NCCL_", "OMP_", "GLOO_", "TORCH_", "PYTORCH_", "VLLM_")
_HARMLESS = ("HOME", "USER", "HF_HUB_OFFLINE", "HF_HOME")
#: Annotation with a complete earlier version of an object.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def redact(document: Any) -> Any:
    """Return a copy of a JSON document without the values of environment variables, but for those of CUDA,
    NCCL and the like, and without credentials in URLs.

    References to Secrets stay: they are names.
    """
    if isinstance(document, Mapping):
        if _is_variable(document) and not _is_harmless(str(document["name"])):
            return {**document, "value": REMOVED}
        return {name: REMOVED if name == _LAST_APPLIED else redact(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [redact(item) for item in document]
    return _without_credentials(document) if isinstance(document, str) else document


def _is_variable(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("name"), str) and isinstance(entry.get("value"), str)


def _is_harmless(name: str) -> bool:
    return name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES)


def _without_credentials(text: str) -> str:
    """Return the text without the user of a URL such as https://user:token@host."""
    scheme, separator, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    return f"{scheme}{separator}{REMOVED}@{host}{slash}{path}" if separator and at and user else text
