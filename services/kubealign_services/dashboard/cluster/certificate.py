"""The dashboard's own certificate, taken up again when its files change, as when cert-manager renews it."""

import asyncio
import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0


async def renewed(context: ssl.SSLContext, certificate: Path, key: Path, look: float = _LOOK_SECONDS) -> None:
    """Until cancelled: connections that come after a change see the new certificate. Files that do not fit
    together, as in the moment between two writes, are looked at again."""
    held = _state(certificate, key)
    while True:
        await asyncio.sleep(look)
        now = _state(certificate, key)
        if now == held:
            continue
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            log.warning("the new certificate in %s cannot be used; the old one stays: %s", certificate, error)
            continue
        held = now
        log.info("took up the new certificate in %s", certificate)


def _state(*files: Path) -> tuple[tuple[int, int] | None, ...]:
    """Which contents they have, as far as that shows without reading them; None: there is none."""
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
