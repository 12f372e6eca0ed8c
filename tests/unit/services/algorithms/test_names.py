"""Algorithm names occur only in the algorithms themselves, and each algorithm is short."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubealign.spec.algorithms import Algorithm, algorithm_specs
from kubealign.spec.base import field_alias
from kubealign_services.algorithms.factory import load_algorithm

ROOT = Path(__file__).parents[4]
ALGORITHMS = ROOT / "services/kubealign_services/algorithms"
LONGEST = 150

#: Union members whose names have other meanings as well: verbs, and a kind of model with its own role.
ORDINARY = {"generate", "annotate", "evaluate", "custom", "custom_offline", "reward_model"}

#: Files that may name algorithms, with the reason.
ALLOWED = {
    "sdk/kubealign/spec": "the union itself",
    "services/kubealign_services/algorithms": "they themselves",
    "operator/kubealign_operator/crd/model_rules.py": "what the spec's validators say, for an API server",
    "operator/kubealign_operator/crd/mixture_rules.py": "the same, for mixtures of experts",
    "sdk/kubealign/cli/commands/spec/init.py": "an example in the command's help",
    "sdk/kubealign/bench/job.py": "the job that the benchmark runs",
    "services/kubealign_dashboard/api/openapi.py": "an example in the API's documents",
    "services/kubealign_dashboard/api/routes/jobs.py": "an example in the API's documents",
}


def names() -> set[str]:
    """Return each name as written in Python, in documents and in commands."""
    result: set[str] = set()
    for member in set(Algorithm.model_fields) - ORDINARY:
        result |= {
            member,
            field_alias(Algorithm, member).lower(),
            member.replace("_", "-"),
            member.replace("_", ""),
        }
    return result


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, word) of all identifiers and one-word strings."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield from ((line, part) for part in word.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield line, node.value


def holds(word: str, known: set[str]) -> bool:
    """Return whether the word is a name or contains one: ppo, is_ppo, PPOTrainer."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word).lower()
    pieces = [piece for piece in re.split(r"[^a-z0-9]+", parts) if piece]
    longest = max(name.count("_") + name.count("-") for name in known) + 1
    return any(
        joined.join(pieces[start:end]) in known
        for joined in ("_", "")
        for start in range(len(pieces))
        for end in range(start + 1, min(start + longest, len(pieces)) + 1)
    )


@pytest.mark.slow
def test_no_algorithm_is_named_outside_allowed_files() -> None:
    known = names()
    assert {"ppo", "dr_grpo", "drgrpo", "dr-grpo"} <= known
    result = []
    for package in ("sdk/kubealign", "operator/kubealign_operator", "services/kubealign_services"):
        for path in sorted((ROOT / package).rglob("*.py")):
            relative_path = path.relative_to(ROOT).as_posix()
            if any(
                relative_path == allowed or relative_path.startswith(f"{allowed}/") for allowed in ALLOWED
            ):
                continue
            for line, word in identifiers(ast.parse(path.read_text(encoding="utf-8"))):
                if holds(word, known) and not is_metric(word):
                    result.append(f"{relative_path}:{line}: {word}")
    assert result == []


def is_metric(word: str) -> bool:
    """Return whether the word is a metric, named in docs/metrics.md."""
    return re.fullmatch(r"[a-z]+/[a-z_/]+", word) is not None


def test_name_detection() -> None:
    known = names()
    for word in ("ppo", "is_ppo", "PPO", "PPOTrainer", "DrGRPO", "drGrpo", "dr-grpo", "loss_of_sft"):
        assert holds(word, known), word
    for word in ("support", "spinner", "reinforced", "opposite", "reward_model", "ipod", ""):
        assert not holds(word, known), word


def test_dashboard_page_names_no_algorithm() -> None:
    known = names()
    for path in sorted((ROOT / "services/kubealign_dashboard/page").rglob("*.js")):
        words = re.findall(r"""["'`]([A-Za-z_-]+)["'`]""", path.read_text(encoding="utf-8"))
        assert [word for word in words if holds(word, known)] == [], path


def test_every_allowance_is_used() -> None:
    assert [allowed for allowed in ALLOWED if not (ROOT / allowed).exists()] == []


def test_algorithms_page_names_all_algorithms_with_valid_links() -> None:
    page = ROOT / "docs/algorithms/README.md"
    text = page.read_text(encoding="utf-8")
    assert [
        member for member in Algorithm.model_fields if f"`{field_alias(Algorithm, member)}`" not in text
    ] == []
    links = set(re.findall(r"\]\(([^)#]+)", text))
    assert sorted(link for link in links if not (page.parent / link).exists()) == []


def test_no_file_is_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in ALGORITHMS.glob("**/*.py")}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_every_algorithm_that_trains_names_its_own_implementation() -> None:
    implementations: dict[str, str] = {}
    for name, kind in algorithm_specs().items():
        if not kind.makes.is_model or name in ("custom", "custom_offline"):
            assert kind.implementation is None, name
            with pytest.raises(LookupError, match=f"no algorithm {name}; there are .*'dapo'"):
                load_algorithm(name)
        else:
            # An inherited implementation would be that of another algorithm.
            implementations[name] = vars(kind)["implementation"]
            assert callable(load_algorithm(name)), name
    assert len(set(implementations.values())) == len(implementations)
