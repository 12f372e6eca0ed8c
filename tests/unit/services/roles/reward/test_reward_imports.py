"""Packages that a reward process imports before it knows its reward."""

import subprocess
import sys

PROGRAM = """
import sys
import kubealign_services.roles.reward.main
assert "transformers" not in sys.modules
"""


def test_a_reward_function_starts_without_transformers() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
