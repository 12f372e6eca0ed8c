"""Writes the folders that a Triton server starts with: its model repository and its Python backend."""

import shutil
from pathlib import Path

import kubealign
import kubealign_services
from kubealign_services.generation.triton_engine.installation import Installation
from kubealign_services.generation.triton_engine.messages import MODEL, TENSOR

_CONFIG = f"""\
name: "{MODEL}"
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "{TENSOR}" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
output [ {{ name: "{TENSOR}" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

_MODEL = """\
import sys

# The backend's interpreter is isolated: it ignores PYTHONPATH and virtual environments.
sys.path[:0] = [{site!r}, {packages!r}]

from kubealign_services.generation.triton_engine.served import TritonPythonModel
"""


def write_repository(folder: Path, installation: Installation) -> None:
    """Write `folder` anew: models/ (the repository), backends/ (the backend directory) and packages/ (this
    project's packages without anything else in their folder).
    """
    shutil.rmtree(folder, ignore_errors=True)
    packages, backend = folder / "packages", folder / "backends" / "python"
    version = folder / "models" / MODEL / "1"
    for directory in (packages, backend, version):
        directory.mkdir(parents=True)
    for module in (kubealign, kubealign_services):
        (packages / module.__name__).symlink_to(Path(module.__path__[0]), target_is_directory=True)
    for file in installation.backend_files:
        (backend / file.name).symlink_to(file)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_MODEL.format(site=str(installation.site), packages=str(packages)))
