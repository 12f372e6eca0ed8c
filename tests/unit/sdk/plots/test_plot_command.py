"""`kubealign plot` on files that it meets, and the images that it writes."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from kubealign.cli.main import app


def plot(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plot", *map(str, arguments)], env={"TERMINAL_WIDTH": "300"})


def write_run(folder: Path, rewards: list[float]) -> Path:
    """Write a run directory; its second step was repeated by a new driver."""
    folder.mkdir(parents=True)
    lines = [
        {"step": step, "fence": 1, "time": 10.0 * step, "reward/mean": reward, "seconds/step": 2.0}
        for step, reward in enumerate(rewards, 1)
    ]
    lines.insert(2, lines[1] | {"fence": 1, "reward/mean": 99.0})
    lines[3:] = [line | {"fence": 2} for line in lines[3:]]
    lines.insert(3, lines[1] | {"fence": 2})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write_run(folder / "a", [0.1, 0.2, 0.3])
    write_run(folder / "b", [0.3, 0.4, 0.5])
    return folder


def test_png_of_two_metrics_over_two_axes_has_four_panels(runs: Path, tmp_path: Path) -> None:
    image = tmp_path / "curve.png"
    drawn = plot(
        "a", "seeds=a,b", "-o", image, "-f", "reward/mean", "-f", "seconds/step", "--x", "step",
        "--x", "seconds", "--runs-dir", runs,
    )  # fmt: skip
    assert drawn.exit_code == 0, drawn.output
    assert drawn.output.strip() == str(image)
    with Image.open(image) as opened:
        assert opened.format == "PNG"
        assert opened.size == (int(2 * 5.2 * 150), int(2 * 3.6 * 150))
        # The lines of both groups are there.
        colours = {
            colour for _, colour in opened.convert("RGB").getcolors(opened.width * opened.height) or []
        }
        assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours


def test_svg_names_curves_axes_and_title_and_is_reproducible(runs: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for image in (first, second):
        drawn = plot("ours=a,b", "-o", image, "--title", "A title", "--x", "seconds", "--runs-dir", runs)
        assert drawn.exit_code == 0, drawn.output
    text = first.read_text()
    for label in ("ours (2 runs)", "reward/mean", "training time (s)", "A title"):
        assert f">{label}<" in text
    assert first.read_bytes() == second.read_bytes()


def test_other_files_give_the_same_curve_as_the_run(runs: Path, tmp_path: Path) -> None:
    rows = [{"step": step, "reward": reward} for step, reward in ((1, 0.1), (2, 0.2), (3, 0.3))]
    state, table = tmp_path / "trl" / "trainer_state.json", tmp_path / "rows.json"
    state.parent.mkdir()
    # The Trainer writes an evaluation of a step as an entry of its own.
    entries = [entry | {"epoch": 0.5} for entry in rows] + [{"step": 3, "eval_loss": 1.0}]
    state.write_text(json.dumps({"log_history": entries, "global_step": 3}))
    table.write_text(json.dumps(rows))
    images = []
    for name in (str(runs / "a"), str(state), str(state.parent), str(table)):
        image = tmp_path / f"{len(images)}.svg"
        drawn = plot(f"run={name}", "-o", image, "-f", "reward/mean,reward")
        assert drawn.exit_code == 0, drawn.output
        images.append(image.read_bytes())
    assert len(set(images)) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a", "-o", "curve.jpg"], "the suffix is .jpg; allowed: .png, .svg, .pdf"),
        (["a", "-o", "missing/curve.png"], "missing is not a folder"),
        (["c", "-o", "curve.png"], "no run c: c or {runs}/c is not a run directory, a metrics.jsonl"),
        (
            ["a", "-o", "curve.png", "-f", "reward"],
            "a has no metric reward; it has reward/mean, seconds/step",
        ),
        (["empty", "-o", "curve.png"], "metrics.jsonl has no metrics yet"),
        (["text.json", "-o", "curve.png"], "text.json cannot be read as JSON"),
        (["list.json", "-o", "curve.png"], "list.json has no list of rows with a step"),
    ],
)
def test_bad_input_is_refused_with_the_allowed_values(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (runs / "empty").mkdir()
    (runs / "empty" / "metrics.jsonl").write_text("")
    (tmp_path / "text.json").write_text("reward")
    (tmp_path / "list.json").write_text('[{"reward": 1}]')
    refused = plot(*arguments, "--runs-dir", runs)
    assert refused.exit_code == 2
    assert text.format(runs=runs) in refused.output
    assert not list(tmp_path.glob("curve.*"))


def test_missing_library_is_named_with_its_extra(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = plot("a", "-o", tmp_path / "curve.png", "--runs-dir", runs)
    assert refused.exit_code == 2
    assert "matplotlib is not installed: pip install 'kubealign[plot]'" in refused.output
