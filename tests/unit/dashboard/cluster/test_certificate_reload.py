"""A renewed certificate is reloaded; an invalid one is not."""

import asyncio
import logging
import ssl
from datetime import timedelta
from pathlib import Path

from kubealign.access.certificate_authority import CertificateAuthority
from kubealign.process_settings import Role
from kubealign_dashboard.cluster import certificate_reload as module
from kubealign_dashboard.cluster.certificate_reload import reload_on_change

_LOOK = 0.02
_SECONDS = 10


class Lines(logging.Handler):
    """Log messages as they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put_nowait(record.getMessage())

    async def until(self, text: str) -> None:
        async with asyncio.timeout(_SECONDS):
            while text not in await self._lines.get():
                continue


def write(folder: Path) -> tuple[Path, Path]:
    issued = CertificateAuthority.create("any", timedelta(days=1)).issue(Role.DRIVER)
    # Like a kubelet: the new file is complete before it replaces the old one.
    for name, content in (("tls.crt", issued.certificate_pem), ("tls.key", issued.key_pem)):
        (folder / "new").write_bytes(content)
        (folder / "new").replace(folder / name)
    return folder / "tls.crt", folder / "tls.key"


async def test_connections_after_a_renewal_use_the_new_certificate(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    async def shown() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=_SECONDS)

    lines = Lines()
    module.log.addHandler(lines)
    module.log.setLevel(logging.INFO)
    watching = asyncio.create_task(reload_on_change(context, certificate, key, _LOOK))
    try:
        first = await shown()
        assert first == certificate.read_text()
        key.write_text("nothing")
        await lines.until("cannot be used")
        assert await shown() == first
        write(tmp_path)
        await lines.until("loaded the new certificate")
        assert await shown() == certificate.read_text() != first
    finally:
        module.log.removeHandler(lines)
        watching.cancel()
        server.close()
        await server.wait_closed()
