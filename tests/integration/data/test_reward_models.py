"""Reward models of a job: several scores, ensembles, and mismatches."""

from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from support.preparing import job, rows
from support.tiny_rewards import policy_folder, reward_folder

pytestmark = pytest.mark.timeout(120)

ALPHABET = "0123456789+="
SUMS = [{"prompt": f"{n}+1=", "response": f"{n + 1}", "good": n % 5, "kind": n % 3} for n in range(9)]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """Name -> folder: one or two scores; the policy."""
    result = {
        "one": reward_folder(tmp_path / "one", ALPHABET, ["good"]),
        "other": reward_folder(tmp_path / "other", ALPHABET, ["rating"], seed=2),
        "two": reward_folder(tmp_path / "two", ALPHABET, ["good", "kind"]),
        "turned": reward_folder(tmp_path / "turned", ALPHABET, ["kind", "good"]),
        "policy": policy_folder(tmp_path / "policy", ALPHABET),
    }
    return {name: str(path) for name, path in result.items()}


def place(folders: dict[str, str], name: str) -> dict[str, Any]:
    return {"path": folders[name]}


def annotate(folder: Path, folders: dict[str, str], policy: str = "policy", **reward: Any) -> AlignmentJob:
    return job(
        {
            "algorithm": {"annotate": {}},
            "policy": {"model": place(folders, policy)},
            "data": {"demonstrations": rows(folder, SUMS)},
            "rewards": [{"name": "steer"} | reward],
        }
    )


def test_every_model_of_an_ensemble_is_found(tmp_path: Path, folders: dict[str, str]) -> None:
    ensemble = {"models": [place(folders, "one"), place(folders, "other")]}
    prepared = prepare(annotate(tmp_path, folders, ensemble=ensemble), tmp_path / "run", {})
    assert prepared.model_folder("reward-steer.0") == Path(folders["one"])
    assert prepared.model_folder("reward-steer.1") == Path(folders["other"])
    other = {"models": [place(folders, "other"), place(folders, "one")]}
    with pytest.raises(DataError, match=r"was made for another spec \(spec\.rewards\.steer"):
        prepare(annotate(tmp_path, folders, ensemble=other), tmp_path / "run", {})


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            {"model": "two", "attributes": {"good": 1, "kid": 2}},
            r"spec\.rewards\[0\]\.attributes: the model has no score kid; it gives good, kind",
        ),
        (
            {"models": ["two", "turned"]},
            r"spec\.rewards\[0\]\.ensemble: models\[1\] gives the scores kind, good; models\[0\] gives good",
        ),
        (
            {"models": ["two", "one"]},
            r"models\[1\] gives the scores good; .* the models of an ensemble must have the same scores",
        ),
        (
            {"models": ["one", "policy"]},
            r"spec\.rewards\[0\]\.ensemble\.models\[1\]: .* holds LlamaForCausalLM, not a reward model",
        ),
    ],
)
def test_scores_that_do_not_fit(
    tmp_path: Path, folders: dict[str, str], reward: dict[str, Any], message: str
) -> None:
    given = {"attributes": reward.get("attributes", {})}
    if "model" in reward:
        given["model"] = place(folders, reward["model"])
    else:
        given["ensemble"] = {"models": [place(folders, name) for name in reward["models"]]}
    with pytest.raises(DataError, match=message):
        prepare(annotate(tmp_path, folders, **given), tmp_path / "run", {})


def test_a_job_that_only_scores_takes_its_tokenizer_from_any_model(
    tmp_path: Path, folders: dict[str, str]
) -> None:
    given = annotate(tmp_path, folders, policy="two", model=place(folders, "two"), attributes={"kind": 1})
    assert prepare(given, tmp_path / "run", {}).report.train.rows_kept == 9


def regression(folder: Path, folders: dict[str, str], policy: str, *columns: str) -> AlignmentJob:
    ratings = rows(folder, SUMS) | {"format": {"text": {"ratings": list(columns)}}}
    return job(
        {
            "algorithm": {"rewardModel": {"objective": {"regression": {}}}},
            "policy": {"model": place(folders, policy)},
            "data": {"ratings": ratings},
        }
    )


def test_reward_model_training_continues_with_its_scores(tmp_path: Path, folders: dict[str, str]) -> None:
    given = regression(tmp_path, folders, "two", "good", "kind")
    assert given.spec.reward_score_names == ("good", "kind")
    prepare(given, tmp_path / "fits", {})
    prepare(regression(tmp_path, folders, "one", "kind"), tmp_path / "one-whatever-it-is-called", {})
    prepare(regression(tmp_path, folders, "policy", "kind", "good"), tmp_path / "first", {})
    for policy, columns in (("two", ["kind", "good"]), ("one", ["good", "kind"])):
        text = (
            r"spec\.policy\.model: .* is a reward model with the scores .*; "
            rf"expected are {', '.join(columns)}"
        )
        with pytest.raises(DataError, match=text):
            prepare(regression(tmp_path, folders, policy, *columns), tmp_path / "not", {})


def test_critic_starts_from_a_single_score(tmp_path: Path, folders: dict[str, str]) -> None:
    def ppo(critic: dict[str, Any]) -> AlignmentJob:
        return job(
            {
                "algorithm": {"ppo": {}},
                "policy": {"model": place(folders, "policy")},
                "data": {"prompts": rows(tmp_path, SUMS)},
                "rewards": [{"name": "steer", "model": place(folders, "two")}],
                "critic": critic,
                "rollout": {"sampling": {"maxTokens": 4}},
            }
        )

    prepare(ppo({}), tmp_path / "zero", {})
    with pytest.raises(
        DataError, match=r"rewards\[0\]\.model: .* with the scores good, kind; expected are value"
    ):
        prepare(ppo({"headInit": "RewardModel"}), tmp_path / "head", {})
