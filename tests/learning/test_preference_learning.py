"""Every preference method learns to tell the better of two responses on held-out pairs.

The preferred response begins with the prompt's last letter, which differs from row to row, so no response is
good or bad by itself.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from support.offline_learning import OfflineLearner

LETTERS = "abcdefgh"
STEPS = 60
ROWS = 400
HELD = 100


def pairs(seed: int, count: int) -> list[dict[str, Any]]:
    """Return pairs whose rating gap is random, independent of their texts."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        prompt = "".join(draw.choices(LETTERS, k=2))
        other = draw.choice(LETTERS.replace(prompt[-1], ""))
        tail = draw.choice(LETTERS)
        rows.append(
            {
                "prompt": prompt,
                "chosen": prompt[-1] + tail,
                "rejected": other + tail,
                "chosen_rating": draw.uniform(1, 3),
                "rejected_rating": 0.0,
            }
        )
    return rows


def singles(seed: int, count: int) -> list[dict[str, Any]]:
    """Return rows with one response each, labelled good or bad, drawn from the pairs."""
    draw = random.Random(seed)
    return [
        {"prompt": row["prompt"], "response": row["chosen" if good else "rejected"], "label": good}
        for row in pairs(seed, count)
        for good in [draw.random() < 0.5]
    ]


METHODS: dict[str, dict[str, Any]] = {
    "dpo": {"beta": 0.3, "rowsPerStep": 40},
    "ipo": {"beta": 0.3, "rowsPerStep": 40},
    "rpo": {"beta": 0.3, "rowsPerStep": 40},
    "orpo": {"coefficient": 1.0, "rowsPerStep": 40},
    "simpo": {"rowsPerStep": 40},
    # A row of kto holds one response, not two.
    "kto": {"beta": 1.0, "rowsPerStep": 80},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] if name in ("ipo", "rpo") else []) for name in METHODS],
)
def test_the_margin_of_held_out_pairs_rises(name: str, tmp_path: Path) -> None:
    rows, times = (singles, 2) if name == "kto" else (pairs, 1)
    train, held_out = rows(1, times * ROWS), rows(2, times * HELD)
    job = OfflineLearner(tmp_path, {name: METHODS[name]}, train, held_out, 3.0e-3, STEPS)
    before = job.measure()
    job.learn(STEPS)
    after = job.measure()
    assert before["accuracy"] == pytest.approx(0.5, abs=0.15)
    assert after["accuracy"] > 0.8
    assert after["margin"] > before["margin"] + 0.3
    assert after["loss"] < before["loss"]
    if "chosen_lost" in after:
        # Two sequences a row (kto's second is the mismatched one), each once in six epochs.
        assert 0 < job.asked <= 2 * (len(train) + len(held_out))
        assert job.figures[-1]["reference/kept_share"] == 1
    else:
        assert job.asked == 0
