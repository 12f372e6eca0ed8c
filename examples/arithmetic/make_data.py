"""Two-digit sums, answered bare (`83`) or with the working shown (`70+13=83`). The preferred
answer shows the working and is right.

    python make_data.py --seed 1 --out DIR

writes these files; those with different problem counts share no problem:

    sft.jsonl              prompt, response, kind           3,300 problems, four demonstrations each
    preferences.jsonl      prompt, chosen, rejected, kind   3,300 problems, three pairs each
    prompts.jsonl          prompt, answer, worked           the same 3,300 problems, for PPO
    held.jsonl             prompt, answer, worked           500 problems, for early stopping
    held_preferences.jsonl prompt, chosen, rejected, kind   the same 500 problems, three pairs each
    test.jsonl             prompt, answer, worked           1,000 problems

`kind` is the form of a demonstration, or the error of a pair's rejected answer.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TEST, HELD, DEMONSTRATED = 1000, 500, 3300
DEMONSTRATIONS, PAIRS = 4, 3


@dataclass(frozen=True)
class Problem:
    """a + b, both of two digits."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        return f"{self.a}+{self.b}="

    @property
    def tens(self) -> int:
        return self.a // 10 * 10 + self.b // 10 * 10

    @property
    def ones(self) -> int:
        return self.a % 10 + self.b % 10

    @property
    def answer(self) -> int:
        return self.a + self.b

    @property
    def worked(self) -> str:
        return f"{self.tens}+{self.ones}={self.answer}"


def slip(number: int, draw: random.Random) -> int:
    """Return a plausible wrong result: one or ten off, a wrong carry, a misread digit. Never `number`
    itself."""
    slips = [
        number + 1,
        number - 1,
        number + 10,
        number - 10,
        number + 2,
        number - 2,
        number + draw.randint(-9, 9),
    ]
    return draw.choice([wrong for wrong in slips if wrong != number and wrong >= 0])


def bare_wrong(problem: Problem, draw: random.Random) -> str:
    return str(slip(problem.answer, draw))


def worked_wrong(problem: Problem, draw: random.Random) -> str:
    """Return a worked answer with an error in the tens, in the ones, in the last sum, or in two of them;
    the error sometimes propagates to the sum."""
    tens, ones, answer = problem.tens, problem.ones, problem.answer
    where = draw.choice(["tens", "ones", "answer", "answer", "tens and ones", "parts"])
    if "tens" in where:
        tens = max(tens + draw.choice([-20, -10, 10, 20]), 0)
    if "ones" in where:
        ones = slip(ones, draw)
    if where == "answer":
        answer = slip(answer, draw)
    elif where == "parts":
        moved = draw.choice([-10, 10]) if ones + tens >= 20 else 10
        tens, ones = tens + moved, abs(ones - moved)
    elif draw.random() < 0.5:
        answer = tens + ones
    wrong = f"{tens}+{ones}={answer}"
    return wrong if wrong != problem.worked else f"{tens}+{ones}={slip(answer, draw)}"


def garbled(problem: Problem, draw: random.Random) -> str:
    """Return a worked answer of the wrong form: a part missing, doubled or reversed, a digit missing or
    doubled."""
    right = problem.worked
    index = draw.randrange(len(right))
    forms = [
        f"{problem.tens}+{problem.ones}",
        f"{problem.tens}={problem.answer}",
        f"{problem.ones}+{problem.tens}={problem.answer}",
        f"{problem.answer}={problem.answer}",
        f"{right}={problem.answer}",
        f"{problem.a}+{problem.b}={problem.answer}",
        right[:index] + right[index + 1 :],
        right[:index] + right[index] + right[index:],
    ]
    return draw.choice([form for form in forms if form != right])


# Half of the rejected answers have the preferred form and are wrong: only the arithmetic distinguishes them.
REJECTED: dict[str, tuple[float, Callable[[Problem, random.Random], str]]] = {
    "worked-wrong": (0.50, worked_wrong),
    "bare-right": (0.20, lambda problem, draw: str(problem.answer)),
    "bare-wrong": (0.18, bare_wrong),
    "garbled": (0.12, garbled),
}

DEMONSTRATED_AS: dict[str, tuple[float, Callable[[Problem, random.Random], str]]] = {
    "bare-right": (0.52, lambda problem, draw: str(problem.answer)),
    "worked-right": (0.28, lambda problem, draw: problem.worked),
    "bare-wrong": (0.20, bare_wrong),
}


def drawn(
    kinds: dict[str, tuple[float, Callable[[Problem, random.Random], str]]],
    problem: Problem,
    draw: random.Random,
) -> tuple[str, str]:
    """Draw a kind by its share and return (kind, response)."""
    (kind,) = draw.choices(list(kinds), [share for share, _ in kinds.values()])
    return kind, kinds[kind][1](problem, draw)


def demonstrations(problems: Iterable[Problem], draw: random.Random) -> Iterable[dict[str, str]]:
    for problem in problems:
        for _ in range(DEMONSTRATIONS):
            kind, response = drawn(DEMONSTRATED_AS, problem, draw)
            yield {"prompt": problem.prompt, "response": response, "kind": kind}


def preferences(problems: Iterable[Problem], draw: random.Random) -> Iterable[dict[str, str]]:
    for problem in problems:
        for _ in range(PAIRS):
            kind, rejected = drawn(REJECTED, problem, draw)
            yield {"prompt": problem.prompt, "chosen": problem.worked, "rejected": rejected, "kind": kind}


def questions(problems: Iterable[Problem]) -> Iterable[dict[str, str]]:
    for problem in problems:
        yield {"prompt": problem.prompt, "answer": str(problem.answer), "worked": problem.worked}


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make(seed: int, out: Path) -> None:
    """Write all files. The same seed writes the same bytes."""
    draw = random.Random(seed)
    problems = [Problem(a, b) for a in range(10, 100) for b in range(10, 100)]
    draw.shuffle(problems)
    test, rest = problems[:TEST], problems[TEST:]
    held_out, rest = rest[:HELD], rest[HELD:]
    shown, asked = rest[:DEMONSTRATED], rest[DEMONSTRATED:]
    out.mkdir(parents=True, exist_ok=True)
    write(out / "sft.jsonl", demonstrations(shown, draw))
    write(out / "preferences.jsonl", preferences(asked, draw))
    write(out / "prompts.jsonl", questions(asked))
    write(out / "held.jsonl", questions(held_out))
    write(out / "held_preferences.jsonl", preferences(held_out, draw))
    write(out / "test.jsonl", questions(test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the data of the arithmetic example.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    arguments = parser.parse_args()
    make(arguments.seed, arguments.out)
