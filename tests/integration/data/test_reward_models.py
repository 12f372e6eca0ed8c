"""Reward models of a job: several scores, ensembles, and mismatches."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.tokenization.tokenizers import train_bpe_tokenizer
from support.preparing import job, rows
from support.tiny_rewards import classifier_folder, policy_folder, reward_folder

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


def test_critic_starts_from_the_scores_of_the_reward_or_from_a_single_one(
    tmp_path: Path, folders: dict[str, str]
) -> None:
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
    # The critic's model is that of the reward, whose attributes weight its scores.
    prepare(ppo({"headInit": "RewardModel"}), tmp_path / "head", {})
    named = {"headInit": "RewardModel", "model": place(folders, "two")}
    with pytest.raises(DataError, match=r"critic\.model: .* with the scores good, kind; expected are value"):
        prepare(ppo(named), tmp_path / "named", {})


def grpo(folder: Path, folders: dict[str, str], reward: dict[str, Any], **spec: Any) -> AlignmentJob:
    return job(
        {
            "algorithm": {"grpo": {}},
            "policy": {"model": place(folders, "policy")},
            "data": {"prompts": rows(folder, SUMS)},
            "rewards": [{"name": "steer"} | reward],
            "rollout": {"sampling": {"maxTokens": 4}},
        }
        | spec
    )


@pytest.fixture
def foreign(tmp_path: Path, folders: dict[str, str]) -> dict[str, str]:
    """The folders, and a reward model and a language model of another vocabulary."""
    others = {
        "foreign": reward_folder(tmp_path / "foreign", ALPHABET + "?", seed=3),
        "stranger": policy_folder(tmp_path / "stranger", ALPHABET + "?"),
    }
    return folders | {name: str(path) for name, path in others.items()}


def test_reward_models_of_another_vocabulary_score_text(
    tmp_path: Path, foreign: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    ensemble = {"models": [place(foreign, "one"), place(foreign, "foreign")]}
    with caplog.at_level("INFO"):
        prepared = prepare(grpo(tmp_path, foreign, {"ensemble": ensemble}), tmp_path / "run", {})
    assert prepared.report.text_rewards == ["reward-steer.1"]
    assert [record.message for record in caplog.records if "tokenizer" in record.message] == [
        "spec.rewards[0].ensemble.models[1]: its tokenizer is not the policy's; it scores the text of prompt "
        "and response, rendered and tokenised with its own"
    ]


def test_a_tokenizer_in_an_older_file_is_compared_too(tmp_path: Path, foreign: dict[str, str]) -> None:
    folder = classifier_folder(tmp_path / "older", train_bpe_tokenizer(["1+1"], 258))
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<eos>", "unk_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": "<eos>"}))
    given = grpo(tmp_path, foreign, {"model": {"path": str(folder)}})
    assert prepare(given, tmp_path / "run", {}).report.text_rewards == ["reward-steer"]


def test_tokens_of_another_vocabulary_are_refused(tmp_path: Path, foreign: dict[str, str]) -> None:
    own = {"model": place(foreign, "foreign")}
    fixed = {"kl": {"placement": "Loss", "fixed": {"coefficient": 0.1}}}
    cases: dict[str, dict[str, Any]] = {
        r"rewards\[0\]\.model: its tokenizer .* with placement WithCritic it gets tokens: set pla": {
            "reward": own | {"placement": "WithCritic"},
            "algorithm": {"ppo": {}},
            "critic": {"model": place(foreign, "policy")},
        },
        r"rewards\[0\]\.model: .*; the turns of spec\.rollout\.workflow are known as the policy's tokens": {
            "reward": own,
            "rollout": {"sampling": {"maxTokens": 4}, "workflow": {"function": {"module": "a:b"}}},
        },
        r"rewards\[0\]\.model: its tokenizer is not the policy's: 1 of 16 .*: set spec\.critic\.model to": {
            "reward": own,
            "algorithm": {"ppo": {}},
        },
        r"spec\.critic\.model: its tokenizer is not the policy's: .* the policy's tokens$": {
            "reward": own,
            "algorithm": {"ppo": {}},
            "critic": {"model": place(foreign, "stranger")},
        },
        r"spec\.reference\.model: its tokenizer is not the policy's": {
            "reward": own,
            "algorithm": {"grpo": fixed},
            "reference": {"model": place(foreign, "stranger")},
        },
    }
    for message, spec in cases.items():
        with pytest.raises(DataError, match=message):
            prepare(grpo(tmp_path, foreign, **spec), tmp_path / "run", {})
    teacher = job(
        {
            "algorithm": {"distillation": {}},
            "policy": {"model": place(foreign, "policy")},
            "teacher": {"model": place(foreign, "stranger")},
            "data": {"demonstrations": rows(tmp_path, SUMS)},
        }
    )
    with pytest.raises(DataError, match=r"spec\.teacher\.model: its tokenizer is not the policy's"):
        prepare(teacher, tmp_path / "run", {})
    prepare(
        grpo(tmp_path, foreign, own, algorithm={"ppo": {}}, critic={"model": place(foreign, "policy")}),
        tmp_path / "run",
        {},
    )


def test_rows_too_long_for_a_text_reward_follow_overlong(tmp_path: Path, foreign: dict[str, str]) -> None:
    """The policy's context is 64 tokens, those of the reward model too; but it has more tokens per text."""
    tokenizer = train_bpe_tokenizer(["1"], 258)
    small = classifier_folder(tmp_path / "small", tokenizer, max_position_embeddings=8)
    lines = [{"prompt": "1+1=", "response": "2"}, {"prompt": "1+1+1+1=", "response": "4"}]

    def annotated(lines: list[dict[str, Any]], **data: Any) -> AlignmentJob:
        given = annotate(tmp_path, foreign, model={"path": str(small)}).model_dump(by_alias=True)
        given["spec"]["data"]["demonstrations"] = rows(tmp_path, lines) | data
        return AlignmentJob.model_validate(given)

    report = prepare(annotated(lines), tmp_path / "drop", {}).report
    assert (report.train.rows_kept, report.train.dropped, report.context) == (1, 1, 64)
    with pytest.raises(
        DataError,
        match=r"row 2 is too long: prompt and response are 10 tokens of reward-steer, whose context is 8",
    ):
        prepare(annotated(lines, overlong="Fail"), tmp_path / "fail", {})
    with pytest.raises(DataError, match=r"nothing is left .* with its response, 8 tokens of reward-steer\)"):
        prepare(annotated(lines[1:]), tmp_path / "none", {})
