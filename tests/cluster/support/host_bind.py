"""Two images made without a registry or a builder: pause, and one that links to the host's Python."""

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import certifi

PAUSE = "kubealign-pause:test"
HOST_BIND = "kubealign-hostbind:test"
# Where the host's folders appear in every container of the node.
HOST_ROOT = Path("/host")
# Writable folder of the node: its containers compile each kernel of the engine once, not once in each pod.
KERNEL_CACHE = HOST_ROOT / "kernels"
CHECKOUT = Path(__file__).resolve().parents[3]
# The folders with the project's packages, which a link of the virtual environment names by their own path.
_PACKAGE_FOLDERS = ("sdk", "operator", "services")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# 65532 is the user of the platform's images.
_PASSWORDS = (
    "root:x:0:0::/root:/bin/sh\nkubealign:x:65532:65532::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n"
)
_GROUPS = "root:x:0:\nkubealign:x:65532:\n"


@dataclass(frozen=True)
class HostFolder:
    """A folder of this machine that containers see at `inside`; the image has a link at its own path."""

    source: Path
    inside: Path


def host_folders() -> list[HostFolder]:
    """Return the host folders of the project's Python: /usr, the checkout, the venv and the interpreter."""
    chosen: list[Path] = []
    for path in (Path("/usr"), CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)):
        if not any(path.is_relative_to(other) for other in chosen):
            chosen.append(path)
    return [HostFolder(path, HOST_ROOT / f"{number}-{path.name}") for number, path in enumerate(chosen)]


def path_in_containers(path: Path) -> Path:
    """Return the path in a container of a path of this machine.

    The links of the image do not suffice: a pod's own volume at /tmp hides a checkout below /tmp.
    """
    for folder in host_folders():
        if path.is_relative_to(folder.source):
            return folder.inside / path.relative_to(folder.source)
    return path


def certificate_variables() -> dict[str, str]:
    """Return the variables by which the pods of HOST_BIND, which has no certificates, find this machine's."""
    return {"SSL_CERT_FILE": str(path_in_containers(Path(certifi.where())))}


def _file(name: str, content: bytes, mode: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def _folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info, b""


def _link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def _tar(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _archive(name: str, layer: bytes, settings: Mapping[str, object]) -> bytes:
    """Return an image archive with one layer."""
    config = {
        "architecture": _ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    file = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": file, "RepoTags": [f"docker.io/library/{name}"], "Layers": ["layer.tar"]}]
    parts = ((file, text), ("layer.tar", layer), ("manifest.json", json.dumps(manifest).encode()))
    return _tar([_file(part, content, 0o644) for part, content in parts])


def pause_image(pause: Path) -> bytes:
    """Return the pause image, which holds a pod's namespaces: one static binary."""
    layer = _tar([_file("pause", pause.read_bytes(), 0o755)])
    return _archive(PAUSE, layer, {"Entrypoint": ["/pause"], "User": "65535:65535"})


def host_bind_image(folders: Sequence[HostFolder]) -> bytes:
    """Return an image of links to the host's folders, which the node mounts in every container.

    The image runs as user 65532 and has this interpreter's programs on its PATH."""
    members = [_folder(name) for name in ("etc", "root", "home")]
    members.append(_folder("tmp", 0o1777))
    members += [_file("etc/passwd", _PASSWORDS.encode(), 0o644), _file("etc/group", _GROUPS.encode(), 0o644)]
    # Debian keeps the loader's cache and the alternatives outside /usr.
    if Path("/etc/ld.so.cache").is_file():
        members.append(_file("etc/ld.so.cache", Path("/etc/ld.so.cache").read_bytes(), 0o644))
    if Path("/etc/alternatives").is_dir():
        links = (path for path in Path("/etc/alternatives").iterdir() if path.is_symlink())
        members.append(_folder("etc/alternatives"))
        members += [_link(str(path).lstrip("/"), str(path.readlink())) for path in links]
    existing = {"etc", "root", "home", "tmp"}
    for folder in folders:
        parents = [str(parent).lstrip("/") for parent in reversed(folder.source.parents)][1:]
        members += [_folder(parent) for parent in parents if parent not in existing]
        existing.update(parents)
        members.append(_link(str(folder.source).lstrip("/"), str(folder.inside)))
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            members.append(_link(name, f"usr/{name}"))
    path = f"{path_in_containers(Path(sys.executable).parent)}:/usr/local/bin:/usr/bin:/bin"
    packages = ":".join(str(path_in_containers(CHECKOUT / name)) for name in _PACKAGE_FOLDERS)
    environment = [f"PATH={path}", f"PYTHONPATH={packages}", f"NUMBA_CACHE_DIR={KERNEL_CACHE}"]
    settings = {"Env": environment, "User": "65532:65532", "Cmd": ["python"]}
    return _archive(HOST_BIND, _tar(members), settings)
