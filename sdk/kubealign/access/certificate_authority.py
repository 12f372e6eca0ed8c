"""Certificate authority of a job: one CA per job, one certificate per role, for servers and clients alike.

A certificate's identity is its only URI name, `spiffe://kubealign/JOB/ROLE`, a SPIFFE ID
(https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md). Requires `cryptography`; imported only
by code that issues certificates.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubealign.process_settings import Role, TlsFiles

LOOPBACK = ("localhost", "127.0.0.1")
# Certificates are valid from slightly before their creation, as machine clocks differ.
_CLOCK_SKEW = timedelta(minutes=10)


@dataclass(frozen=True)
class IssuedCertificate:
    """Certificate and private key (PKCS #8, unencrypted) of a role, both PEM."""

    certificate_pem: bytes
    key_pem: bytes


class CertificateAuthority:
    """Signs the certificates of one job. The private key stays with the process that starts the job."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, job_name: str, lifetime: timedelta) -> "CertificateAuthority":
        """Create a CA for a job. The CA and its certificates expire together, after `lifetime`.

        Raises ValueError if the lifetime is not positive.
        """
        if lifetime <= timedelta(0):
            raise ValueError(f"the lifetime of certificates is {lifetime}: it must be positive")
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kubealign"),
                x509.NameAttribute(NameOID.COMMON_NAME, job_name),
            ]
        )
        builder = (
            _certificate_builder(name, name, key.public_key(), now - _CLOCK_SKEW, now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def job_name(self) -> str:
        return str(self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    @property
    def certificate_pem(self) -> bytes:
        """CA certificate with which peers verify certificates."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, role: Role, hosts: Sequence[str] = LOOPBACK) -> IssuedCertificate:
        """Issue a certificate of a role, valid as a server at `hosts` (names or addresses) and as a client.

        Its DNS names include the role's server name.

        Raises ValueError for a host that is neither.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        identity = spiffe_id(self.job_name, role)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(role))])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity)]
        names += [_general_name(host) for host in (*hosts, role.server_name)]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _certificate_builder(
                subject,
                self._certificate.subject,
                key.public_key(),
                self._certificate.not_valid_before_utc,
                self._certificate.not_valid_after_utc,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(certificate.public_bytes(serialization.Encoding.PEM), _private_key_pem(key))

    def save(self, directory: Path) -> None:
        """Write ca.pem and ca-key.pem, readable by their owner only."""
        write_private_file(directory / "ca.pem", self.certificate_pem)
        write_private_file(directory / "ca-key.pem", _private_key_pem(self._key))

    @classmethod
    def load(cls, directory: Path) -> "CertificateAuthority":
        """Read the files written by `save`.

        Raises FileNotFoundError, and ValueError if they are not a CA and its key.
        """
        certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((directory / "ca-key.pem").read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError(f"{directory / 'ca-key.pem'} is not the key of {directory / 'ca.pem'}")
        return cls(certificate, key)


def spiffe_id(job_name: str, role: Role) -> str:
    """Return the URI in a role's certificate."""
    return f"spiffe://kubealign/{job_name}/{role}"


def write_tls(
    directory: Path, authority: CertificateAuthority, role: Role, hosts: Sequence[str] = LOOPBACK
) -> TlsFiles:
    """Issue a certificate and write ca.pem, ROLE.pem and ROLE-key.pem, readable by their owner only."""
    issued = authority.issue(role, hosts)
    files = TlsFiles.of_role(directory, role)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private_file(files.ca, authority.certificate_pem)
    write_private_file(files.certificate, issued.certificate_pem)
    write_private_file(files.key, issued.key_pem)
    return files


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file readable by its owner only. The write is atomic: no reader sees a partial file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not host or urlsplit(f"//{host}").hostname != host.lower():
            raise ValueError(f"{host!r} is neither an IP address nor a host name without a port") from None
        return x509.DNSName(host)


def _certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
