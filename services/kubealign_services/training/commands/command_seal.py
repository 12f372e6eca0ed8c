"""Encryption and authentication of what the ranks of a group write into their store.

torch's TCPStore has neither: whoever reaches its port reads and writes every key. Commands carry the batches
of the job and the folders that a rank saves to, so they are sealed with AES-256-GCM
(https://csrc.nist.gov/pubs/sp/800/38/d/final) under a key that only the processes of one role have.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch.distributed import Store  # type: ignore[attr-defined]

from kubealign.process_settings import TlsFiles

KEY_BYTES = 32
_NONCE_BYTES = 12
_HELLO_BYTES = 16


class ForgedCommand(RuntimeError):
    """A value in the store was not written by a process of this group."""


def derive_command_key(tls: TlsFiles) -> bytes:
    """Return the key [32 bytes] of a role's ranks, derived from the private key that they share.

    HKDF with SHA-256, https://www.rfc-editor.org/rfc/rfc5869.
    """
    derivation = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"kubealign: commands between ranks")
    return derivation.derive(tls.key.read_bytes())


@dataclass(frozen=True)
class CommandSeal:
    """Seals values of one session of a group.

    Args:
        key: 32 bytes, the same on all ranks.
        session: Bytes to which every rank has contributed: what was sealed in another session is refused.
    """

    key: bytes
    session: bytes

    def seal(self, purpose: str, data: bytes) -> bytes:
        """Encrypt `data`. `purpose` says what it is, and is checked by `open`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, data, self._context(purpose))

    def open(self, purpose: str, sealed: bytes) -> bytes:
        """Decrypt. Raises ForgedCommand for data that was not sealed for this purpose in this session."""
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(self.key).decrypt(nonce, ciphertext, self._context(purpose))
        except (InvalidTag, ValueError):
            raise ForgedCommand(f"{purpose} was not written by a process of this group") from None

    def _context(self, purpose: str) -> bytes:
        return self.session + b"/" + purpose.encode()


def agree_on_session(store: Store, rank: int, world_size: int, timeout: float) -> bytes:
    """Return bytes that are fresh for every rank, each of which contributes some.

    Raises:
        DistError: The other ranks did not answer within `timeout` seconds.
        ForgedCommand: The store holds another contribution than this rank's own.
    """
    own = secrets.token_hex(_HELLO_BYTES)
    wait = timedelta(seconds=timeout)
    if rank == 0:
        others = [f"hello/{other}" for other in range(1, world_size)]
        store.wait(others, wait)
        session = json.dumps([own, *(store.get(key).decode() for key in others)])
        store.set("session", session)
        return session.encode()
    store.set(f"hello/{rank}", own)
    store.wait(["session"], wait)
    session = store.get("session").decode()
    if own not in _contributions(session)[rank : rank + 1]:
        raise ForgedCommand("the group's session was not made with this rank")
    return session.encode()


def _contributions(session: str) -> Sequence[str]:
    try:
        contributions = json.loads(session)
    except ValueError:
        return []
    return contributions if isinstance(contributions, list) else []
