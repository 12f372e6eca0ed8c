"""Writes the folders that a Triton server starts with: its model repository and its Python backend."""

import shutil
from pathlib import Path

import kubealign
import kubealign_services
from kubealign_services.generation.triton_engine.messages import MODEL_NAME, TENSOR_NAME
from kubealign_services.generation.triton_engine.server_install import TritonInstallation

#: Folder of this project's packages, without anything else, in the folder of `write_model_repository`.
PACKAGES_FOLDER = "packages"

_MODEL_CONFIG = f"""\
name: "{MODEL_NAME}"
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "{TENSOR_NAME}" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
output [ {{ name: "{TENSOR_NAME}" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

_MODEL_SCRIPT = """\
import sys

# The backend's interpreter is isolated: it ignores PYTHONPATH and virtual environments.
sys.path[:0] = [{site!r}, {packages!r}]

from kubealign_services.generation.triton_engine.python_backend_model import TritonPythonModel
"""


def write_model_repository(folder: Path, installation: TritonInstallation) -> None:
    """Write `folder` anew: models/ (the repository), backends/ (the backend directory) and packages/ (this
    project's packages without anything else in their folder).
    """
    shutil.rmtree(folder, ignore_errors=True)
    packages, backend = folder / PACKAGES_FOLDER, folder / "backends" / "python"
    version = folder / "models" / MODEL_NAME / "1"
    for directory in (packages, backend, version):
        directory.mkdir(parents=True)
    for module in (kubealign, kubealign_services):
        (packages / module.__name__).symlink_to(Path(module.__path__[0]), target_is_directory=True)
    for file in installation.backend_files:
        (backend / file.name).symlink_to(file)
    (version.parent / "config.pbtxt").write_text(_MODEL_CONFIG)
    (version / "model.py").write_text(
        _MODEL_SCRIPT.format(site=str(installation.site), packages=str(packages))
    )
