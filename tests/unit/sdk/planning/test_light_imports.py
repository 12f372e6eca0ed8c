"""Planning imports neither torch nor transformers."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)


def test_no_heavy_library_is_imported() -> None:
    code = (
        "import sys, kubealign.planning.job_plan, kubealign.planning.remedies; "
        "import kubealign.cli.commands.spec.plan; "
        "print(sorted({'torch', 'transformers', 'grpc', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip() == "[]"
