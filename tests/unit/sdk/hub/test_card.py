"""Cards of published results."""

from typing import Any

import yaml

from kubealign.client.records import JobRecord
from kubealign.hub.card import CardInputs, render_card
from support.bad_specs import whole_job


def card(algorithm: str, spec: dict[str, Any], **inputs: Any) -> tuple[dict[str, Any], str]:
    """Return the metadata and the text of a card."""
    document = whole_job(algorithm, {f"spec.{path}": value for path, value in spec.items()})
    job = JobRecord({**document, "status": {"phase": "Succeeded", "step": 7}})
    fields = {"is_dataset": False, "is_reward_model": False, "metrics": {}, **inputs}
    _, front, text = render_card(CardInputs(job=job, repo="acme/sums", version="1.2", **fields)).split(
        "---\n", 2
    )
    return yaml.safe_load(front), text


def settings(text: str) -> dict[str, Any]:
    """Return the settings of the training in a card."""
    document: dict[str, Any] = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    return document


def test_the_base_model_and_the_settings_of_a_policy() -> None:
    base = {"huggingFace": {"repo": "acme/base", "revision": "abc"}}
    critic = {"model": {"volume": {"claimName": "secret-claim"}}, "optimizer": {"adamW": {}}}
    front, text = card("ppo", {"policy.model": base, "critic": critic}, metrics={"val/exact": 0.51239})
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["kubealign", "ppo"],
        "base_model": "acme/base",
    }
    assert "(algorithm `ppo`) after step 7, made with kubealign 1.2." in text
    assert "| `val/exact` | 0.51239 |" in text
    assert settings(text)["critic"] == {"optimizer": {"adamW": {}}}
    assert "secret-claim" not in text


def test_a_reward_model_is_a_classifier() -> None:
    front, text = card("rewardModel", {}, is_reward_model=True)
    assert front["pipeline_tag"] == "text-classification"
    assert 'AutoModelForSequenceClassification.from_pretrained("acme/sums")' in text
    assert "## Validation" not in text


def test_rows_are_a_data_set() -> None:
    front, text = card("sft", {"algorithm": {"generate": {}}}, is_dataset=True)
    assert front == {"tags": ["kubealign", "generate"]}
    assert "This data set is the result" in text and "transformers" not in text
