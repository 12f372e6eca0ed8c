"""How `kubealign replay` ends where it cannot begin."""

from pathlib import Path

from typer.testing import CliRunner

from kubealign.cli.main import app


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["replay", "none", "--runs-dir", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path / 'none'} holds no run\n")
    assert list(tmp_path.iterdir()) == []
