"""sdk/kubealign/v1 equals the output of `make protos`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_generated_code_is_current(tmp_path: Path) -> None:
    protos = ROOT / "protos"
    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *files],
        cwd=protos,
        check=True,
        timeout=60,
    )
    generated = {path.name: path.read_text() for path in (tmp_path / "kubealign/v1").iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "sdk/kubealign/v1").glob("*_pb2*.py*")}
    assert generated.keys() == committed.keys()
    stale = [name for name, text in generated.items() if committed[name] != text]
    assert not stale, f"{stale} are not what the protos say: run make protos"
