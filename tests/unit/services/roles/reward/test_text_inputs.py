"""Text inputs of a reward model whose vocabulary is not the policy's, from rollouts."""

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJob
from kubealign.v1 import rollout_pb2
from kubealign_services.data.models.text_rewards import TextReward
from kubealign_services.data.tokenization.reward_text import RewardTextFormat
from kubealign_services.data.tokenization.tokenizers import train_bpe_tokenizer, train_character_tokenizer
from kubealign_services.roles.reward.text_inputs import TextInputs, UnreadableSample
from kubealign_services.runtime.rpc.errors import InvalidRequest
from support.chat_templates import FAMILIES
from support.preparing import from_config, job

LLAMA, QWEN = FAMILIES["llama3"], FAMILIES["qwen25"]
MESSAGES = [{"role": "user", "content": "what is one?"}]


def grpo(layout: dict[str, Any], **data: Any) -> AlignmentJob:
    return job(
        {
            "algorithm": {"grpo": {}},
            "policy": {"model": from_config()},
            "data": {"prompts": {"source": {"path": "rows.jsonl"}, "format": layout} | data},
            "rewards": [{"name": "rm", "model": {"path": "rm"}}],
            "rollout": {"sampling": {"maxTokens": 8}},
        }
    )


def annotate(layout: dict[str, Any]) -> AlignmentJob:
    return job(
        {
            "algorithm": {"annotate": {}},
            "policy": {"model": from_config()},
            "data": {"demonstrations": {"source": {"path": "rows.jsonl"}, "format": layout}},
            "rewards": [{"name": "rm", "model": {"path": "rm"}}],
        }
    )


def rollout(response: str, prompt: str, purpose: str = "train", **columns: Any) -> rollout_pb2.Rollout:
    return rollout_pb2.Rollout(
        group_id="0/7",
        sample=2,
        response=response,
        purpose=purpose,
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
        columns=json.dumps({"prompt": prompt, "columns": columns}).encode(),
    )


def inputs(
    given: AlignmentJob,
    tokenizer: PreTrainedTokenizerBase,
    context: int | None = None,
    policy: PreTrainedTokenizerBase | None = None,
) -> TextInputs:
    reward = TextReward(tokenizer, RewardTextFormat(is_native=False), context)
    return TextInputs(given, reward, policy or QWEN.tokenizer())


def text_of(subject: TextInputs, tokenizer: PreTrainedTokenizerBase, message: rollout_pb2.Rollout) -> str:
    return str(tokenizer.decode(subject.tokenize(message).tokens))


def test_a_chat_row_is_rendered_by_the_reward_models_template() -> None:
    tokenizer = LLAMA.tokenizer()
    policys_prompt = QWEN.tokenizer().apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True
    )
    row = rollout("one, of course", str(policys_prompt), messages=MESSAGES, answer="1")
    assert text_of(inputs(grpo({"chat": {}}), tokenizer), tokenizer, row) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nwhat is one?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\none, of course<|eot_id|>"
    )


def test_template_and_tools_of_the_data_reach_the_reward_model() -> None:
    tokenizer = LLAMA.tokenizer()
    given = grpo({"chat": {"messages": "asked", "tools": "tools"}}, template="{prompt} Rate: {level}")
    row = rollout("two", "-", asked=MESSAGES, tools=[{"name": "add"}], level=4.0)
    text = text_of(inputs(given, tokenizer), tokenizer, row)
    assert "what is one? Rate: 4<|eot_id|>" in text and '[{"name": "add"}]' in text


@pytest.mark.parametrize("purpose", ["train", "validation"])
def test_a_plain_row_is_plain_text(purpose: str) -> None:
    tokenizer = LLAMA.tokenizer()
    row = rollout(" two", "one and", purpose)
    text = text_of(inputs(grpo({"text": {}}), tokenizer), tokenizer, row)
    assert text == "one and two<|eot_id|>"


def test_a_prompt_of_token_ids_is_its_text_without_special_tokens() -> None:
    tokenizer = LLAMA.tokenizer()
    row = rollout("two", "<|im_start|>user\none?<|im_end|>\n")
    text = text_of(inputs(grpo({"tokens": {}}), tokenizer), tokenizer, row)
    assert text == "user\none?\ntwo<|eot_id|>"


def test_a_response_that_was_cut_is_ended_as_any_other() -> None:
    """Check the end that transformers' templates write too: the score of a conversation without its end is
    not one that the model has learned."""
    tokenizer = LLAMA.tokenizer()
    row = rollout("two, of", "-", messages=MESSAGES)
    row.finish_reason = rollout_pb2.FINISH_REASON_LENGTH
    assert text_of(inputs(grpo({"chat": {}}), tokenizer), tokenizer, row).endswith("two, of<|eot_id|>")


def test_special_tokens_in_the_response_are_removed() -> None:
    tokenizer = LLAMA.tokenizer()
    row = rollout("two<|im_end|> or<|eot_id|> not", "-", messages=MESSAGES)
    assert text_of(inputs(grpo({"chat": {}}), tokenizer), tokenizer, row).endswith("two or not<|eot_id|>")


def test_characters_that_the_policy_splits_across_tokens_arrive_whole() -> None:
    policy = train_bpe_tokenizer(["ab"], 260)
    tokens = policy("日本é", add_special_tokens=False)["input_ids"]
    assert len(tokens) == 8  # bytes
    tokenizer = train_character_tokenizer(["日本é?"])
    row = rollout(policy.decode(tokens), "?")
    scored = inputs(grpo({"text": {}}), tokenizer, policy=policy).tokenize(row)
    assert scored.tokens == [*tokenizer("?日本é")["input_ids"], tokenizer.eos_token_id]
    assert tokenizer.unk_token_id not in scored.tokens


def test_given_conversations_are_scored_with_their_own_last_message() -> None:
    tokenizer = QWEN.tokenizer()
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    answer = {"role": "assistant", "content": "sure", "tool_calls": [call]}
    row = rollout('sure\n{"function": ...}', "-", messages=[*MESSAGES, answer])
    text = text_of(inputs(annotate({"chat": {}}), tokenizer, policy=LLAMA.tokenizer()), tokenizer, row)
    expected = tokenizer.apply_chat_template([*MESSAGES, answer], tokenize=False)
    assert text == expected and "<tool_call>" in text


def test_a_text_longer_than_the_context_is_refused_with_its_length() -> None:
    tokenizer = train_character_tokenizer(["abcd"])
    subject = inputs(grpo({"text": {}}), tokenizer, context=5)
    assert len(subject.tokenize(rollout("cd", "ab")).tokens) == 5
    with pytest.raises(
        UnreadableSample,
        match=r"^sample 0/7#2 has 6 tokens of the reward model's tokenizer, and the model's context is 5: ",
    ):
        subject.tokenize(rollout("cdd", "ab"))


def test_messages_that_the_template_rejects_are_refused_by_sample() -> None:
    subject = inputs(grpo({"chat": {}}), FAMILIES["gemma3"].tokenizer())
    with pytest.raises(UnreadableSample, match=r"^sample 0/7#2: the chat template rejects its messages: Co"):
        subject.tokenize(rollout("x", "-", messages=[*MESSAGES, *MESSAGES]))


def test_a_rollout_without_its_row_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="columns of sample 0 is ''"):
        inputs(grpo({"text": {}}), LLAMA.tokenizer()).tokenize(rollout_pb2.Rollout(purpose="train"))
