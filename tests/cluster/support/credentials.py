"""Keys, certificates and tokens of one test cluster."""

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = timedelta(days=2)
# Clocks of one machine agree; the margin only keeps a certificate from being newer than the reader's second.
_MARGIN = timedelta(minutes=5)

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def _write_key(path: Path, key: Key | rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(pem)


def _name(common_name: str, organisation: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """A certificate authority with its files in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("kubealign test cluster", None)
        self.certificate = folder / "ca.crt"
        certificate = (
            self._builder(self._subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: Key) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _MARGIN)
            .not_valid_after(now + _LIFE)
        )

    def _issue(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, names: Sequence[str]
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        _write_key(pair.key, key)
        return pair

    def server(self, file: str, names: Sequence[str]) -> Pair:
        """Issue a certificate for a server with these DNS names and addresses."""
        return self._issue(file, _name(file, None), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, file: str, user: str, group: str) -> Pair:
        """Issue a client certificate that names the user and the group as Kubernetes reads them."""
        return self._issue(file, _name(user, group), ExtendedKeyUsageOID.CLIENT_AUTH, ())


def signing_key(path: Path) -> None:
    """Write a new key that signs service account tokens."""
    _write_key(path, rsa.generate_private_key(public_exponent=65537, key_size=2048))


def token() -> str:
    """Return a random bearer token."""
    return secrets.token_hex(24)
