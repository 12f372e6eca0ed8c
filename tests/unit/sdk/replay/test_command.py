"""Exit of `kubealign replay` where it cannot start."""

from pathlib import Path

from typer.testing import CliRunner

from kubealign.cli.main import app


def test_missing_run_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["replay", "none", "--runs-dir", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path / 'none'} holds no run\n")
    assert list(tmp_path.iterdir()) == []
