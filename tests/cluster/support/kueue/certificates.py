"""Certificates of Kueue's webhook server.

Kueue's certificate rotation replaces every certificate that is unlike its own: RSA keys, a CA named kueue-ca,
the name of the webhook Service, and more than 90 days of validity left. Kueue's own certificates lack the
address of this machine, under which the API server calls a manager outside the cluster."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CA_NAME = "kueue-ca"
_LIFE = timedelta(days=365)
_MARGIN = timedelta(minutes=5)


@dataclass(frozen=True)
class WebhookCertificates:
    """PEM texts of a CA and of the webhook server's certificate."""

    ca_certificate: bytes
    ca_key: bytes
    certificate: bytes
    key: bytes

    @property
    def files(self) -> dict[str, bytes]:
        """File names of Kueue's certificate folder and Secret, with their contents."""
        return {
            "ca.crt": self.ca_certificate,
            "ca.key": self.ca_key,
            "tls.crt": self.certificate,
            "tls.key": self.key,
        }

    def write(self, folder: Path) -> None:
        """Write the files for a manager without a mounted Secret."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            path = folder / name
            path.touch(mode=0o600)
            path.write_bytes(content)


def new_certificates(address: str, service: str) -> WebhookCertificates:
    """Issue certificates for a webhook server with an IP address, and with the DNS name of its Service."""
    ca_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ca_name = _name(_CA_NAME)
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), [x509.DNSName(_CA_NAME)])
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    names = [x509.DNSName(service), x509.IPAddress(ipaddress.ip_address(address))]
    certificate = (
        _builder(_name(service), ca_name, key.public_key(), names)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return WebhookCertificates(
        ca.public_bytes(serialization.Encoding.PEM),
        _pem(ca_key),
        certificate.public_bytes(serialization.Encoding.PEM),
        _pem(key),
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey, names: list[x509.GeneralName]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _MARGIN)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    # Kueue parses PKCS #1 only.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
