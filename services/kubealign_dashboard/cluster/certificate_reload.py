"""Reloads the dashboard's TLS certificate when its files change, as when cert-manager renews it."""

import asyncio
import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0


async def reload_on_change(
    context: ssl.SSLContext, certificate: Path, key: Path, check_seconds: float = _CHECK_SECONDS
) -> None:
    """Reload the certificate on changes until cancelled; later connections use the new one.

    Files that do not match, as between two writes, are tried again.
    """
    loaded = _file_states(certificate, key)
    while True:
        await asyncio.sleep(check_seconds)
        current = _file_states(certificate, key)
        if current == loaded:
            continue
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            log.warning(
                "the new certificate in %s cannot be used; keeping the old one: %s", certificate, error
            )
            continue
        loaded = current
        log.info("loaded the new certificate in %s", certificate)


def _file_states(*files: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return identities of the files' contents without reading them; None: a file does not exist."""
    return tuple(_file_state(file) for file in files)


def _file_state(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
