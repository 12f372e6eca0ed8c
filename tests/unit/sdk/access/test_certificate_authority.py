"""Certificate authority of a job: certificates, handshakes, and file permissions."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles

HOUR = timedelta(hours=1)


def shake_hands(server: TlsFiles, client: TlsFiles, host: str = "localhost") -> None:
    """Run a mutual TLS handshake in memory. Raises ssl.SSLError if a side rejects the other."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(server.ca))
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(server.certificate, server.key)
    calling = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(client.ca))
    calling.load_cert_chain(client.certificate, client.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        serving.wrap_bio(to_server, to_client, server_side=True),
        calling.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    done = [False, False]
    for _ in range(10):
        for index in (1, 0):
            try:
                ends[index].do_handshake()
                done[index] = True
            except ssl.SSLWantReadError:
                pass
    assert done == [True, True]


def names_of(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_certificate_names_job_role_and_hosts() -> None:
    issued = CertificateAuthority.create("sums", HOUR).issue(Role.TRAINER, ["trainer.svc", "10.0.0.7"])
    certificate = x509.load_pem_x509_certificate(issued.certificate_pem)
    names = names_of(certificate)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://kubealign/sums/trainer"]
    assert names.get_values_for_type(x509.DNSName) == ["trainer.svc", "trainer.role.kubealign"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7")]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(usage)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_certificates_expire_with_their_authority() -> None:
    before = datetime.now(UTC)
    authority = CertificateAuthority.create("sums", timedelta(days=30))
    certificate = x509.load_pem_x509_certificate(authority.issue(Role.DRIVER).certificate_pem)
    assert certificate.not_valid_after_utc >= before.replace(microsecond=0) + timedelta(days=30)
    root = x509.load_pem_x509_certificate(authority.certificate_pem)
    assert certificate.not_valid_after_utc <= root.not_valid_after_utc


def test_roles_of_one_job_trust_each_other(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("sums", HOUR)
    trainer = write_tls(tmp_path, authority, Role.TRAINER)
    driver = write_tls(tmp_path, authority, Role.DRIVER)
    shake_hands(trainer, driver)
    shake_hands(trainer, driver, host="127.0.0.1")


def test_another_jobs_certificate_is_refused(tmp_path: Path) -> None:
    trainer = write_tls(tmp_path / "a", CertificateAuthority.create("sums", HOUR), Role.TRAINER)
    # The job has the same name: the signature decides, not the name.
    stranger = write_tls(tmp_path / "b", CertificateAuthority.create("sums", HOUR), Role.DRIVER)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.verify.failed"):
        shake_hands(trainer, stranger)
    forger = TlsFiles(ca=trainer.ca, certificate=stranger.certificate, key=stranger.key)
    with pytest.raises(ssl.SSLError):
        shake_hands(trainer, forger)


def test_wrong_host_is_refused(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("sums", HOUR)
    trainer = write_tls(tmp_path, authority, Role.TRAINER, ["trainer.svc"])
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname mismatch"):
        shake_hands(trainer, write_tls(tmp_path, authority, Role.DRIVER), host="localhost")


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir(mode=0o755)
    (folder / "trainer-key.pem").write_text("an older, open file")
    (folder / "trainer-key.pem").chmod(0o644)
    files = write_tls(folder, CertificateAuthority.create("sums", HOUR), Role.TRAINER)
    for path in (files.ca, files.certificate, files.key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "trainer-key.pem", "trainer.pem"]


def test_loaded_authority_issues_trusted_certificates(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("sums", HOUR)
    authority.save(tmp_path)
    reloaded = CertificateAuthority.load(tmp_path)
    assert reloaded.job_name == "sums"
    shake_hands(
        write_tls(tmp_path / "a", authority, Role.TRAINER), write_tls(tmp_path / "b", reloaded, Role.DRIVER)
    )


def test_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    CertificateAuthority.create("sums", HOUR).save(tmp_path)
    second = tmp_path / "other"
    second.mkdir()
    CertificateAuthority.create("sums", HOUR).save(second)
    (second / "ca-key.pem").replace(tmp_path / "ca-key.pem")
    with pytest.raises(ValueError, match="is not the key of"):
        CertificateAuthority.load(tmp_path)


@pytest.mark.parametrize("host", ["", "trainer:50051", "http://trainer"])
def test_invalid_host_is_named(host: str) -> None:
    with pytest.raises(ValueError, match="neither an IP address nor a host name"):
        CertificateAuthority.create("sums", HOUR).issue(Role.TRAINER, [host])


def test_a_lifetime_must_be_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        CertificateAuthority.create("sums", timedelta(0))
