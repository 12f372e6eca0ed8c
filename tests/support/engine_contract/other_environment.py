"""The engine contract in the environment of an engine: its tests run there in a pytest of their own."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree


def check_contract(python: Path, contract: Path, folder: Path, seconds: float, tests: int) -> None:
    """Run the tests of a module, and check that all of them passed and none was skipped.

    Args:
        python: Interpreter of the environment.
        folder: Empty folder for the report.
        tests: Fewest tests that there must be.
    """
    report = folder / "report.xml"
    ended = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", contract],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:]
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")
    outcomes = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert outcomes == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= tests
