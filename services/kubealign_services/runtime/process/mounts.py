"""Paths of the volumes that Kubernetes mounts into a container."""

from dataclasses import dataclass
from pathlib import Path

from kubealign import pod_contract
from kubealign.process_settings import TlsFiles
from kubealign_services.runtime.process.failures import PermanentFailure


@dataclass(frozen=True)
class Mounts:
    """Paths of kubealign.pod_contract below `root`, which is / in a container."""

    root: Path = Path("/")

    @property
    def secrets(self) -> Path:
        return self._path(pod_contract.SECRETS_FOLDER)

    @property
    def document(self) -> Path:
        return self._path(pod_contract.JOB_DOCUMENT)

    @property
    def runtime(self) -> Path:
        return self._path(pod_contract.RUNTIME_FOLDER)

    @property
    def shared_memory(self) -> Path:
        return self._path(pod_contract.SHARED_MEMORY_FOLDER)

    @property
    def termination(self) -> Path:
        return self._path(pod_contract.TERMINATION_FILE)

    @property
    def nats_data(self) -> Path:
        return self._path(pod_contract.NATS_DATA_FOLDER)

    @property
    def tls(self) -> TlsFiles:
        """Files of the pod's own certificate. Raises PermanentFailure when one of them is missing."""
        return TlsFiles(
            ca=self._require_file(pod_contract.CA_FILE),
            certificate=self._require_file(pod_contract.CERTIFICATE_FILE),
            key=self._require_file(pod_contract.KEY_FILE),
        )

    @property
    def redis_ca(self) -> Path | None:
        """CA of the Redis certificate; None when the image trusts it already."""
        path = self.secrets / pod_contract.REDIS_CA_FILE
        return path if path.is_file() else None

    def secret(self, name: str) -> str:
        """Return a password. Raises PermanentFailure when its file is missing, empty or unreadable."""
        path = self._require_file(name)
        try:
            password = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PermanentFailure(f"{path} cannot be read: {error}") from error
        if not password:
            raise PermanentFailure(f"{path} is empty: it holds a password, from the job's Secret")
        return password

    def _require_file(self, name: str) -> Path:
        path = self.secrets / name
        if not path.is_file():
            raise PermanentFailure(
                f"there is no {path}: the job's Secret is mounted at {self.secrets}, with {name}"
            )
        return path

    def _path(self, path: str) -> Path:
        return self.root / path.lstrip("/")
