"""Commits on a full disk: reported clearly, and earlier checkpoints stay."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

_PROGRAM = """
import resource, signal, sys
from pathlib import Path
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.checkpoints.lineage import record_start
from kubealign_services.checkpoints.manifest import CheckpointManifest
from kubealign_services.checkpoints.manifest import describe_shards
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointFailed, CheckpointStore

fence = Fence(Path(sys.argv[1]), 1)
store = CheckpointStore(fence, record_start(fence, 0), RetentionPolicy(2))

def commit(step, state):
    path = store.begin(step)
    (path / "trainer").mkdir()
    (path / "trainer" / "rank-0.safetensors").write_bytes(b"w" * 1000)
    shards = {"trainer": describe_shards(path / "trainer")}
    manifest = CheckpointManifest(
        job="sums", step=step, weight_version=step, fence=1, shards=shards, driver_state={"state": state}
    )
    return store.commit(path, manifest)

commit(1, "")
LIMIT
try:
    commit(2, "s" * 3_000_000)
except CheckpointFailed as error:
    print(error)
else:
    sys.exit("the disk took more than it has room for")
newest = store.reader.latest()
assert newest is not None and newest.manifest.step == 1
assert [path.name for path in Path(sys.argv[1], "commits").iterdir()] == ["step-00000001-fence-1"]
"""

# The write that crosses the limit fails with EFBIG once its signal is ignored.
_LIMIT = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
"""


def run(directory: Path, limit: str) -> str:
    program = textwrap.dedent(_PROGRAM).replace("LIMIT", limit)
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_full_file_system(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes rights that this user does not have")
    try:
        message = run(tmp_path, "")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert "step 2 was not committed: No space left on device" in message
    assert "earlier checkpoints are intact" in message


def test_file_size_limit(tmp_path: Path) -> None:
    message = run(tmp_path, _LIMIT)
    assert "step 2 was not committed: File too large" in message
