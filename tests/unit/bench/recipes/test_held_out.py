"""Measures of TRL's side on held-out rows, against slow loops in float64 and numbers worked by hand."""

import copy
import math
from typing import Any

import pytest
import torch
from tests.bench.recipes.trl_side import held_out
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

WORDS = ["<end>", "<user>", "<assistant>", *map(str, range(40))]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    loaded = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")
    loaded.chat_template = TEMPLATE
    return loaded


def config(**fields: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=0,
        **fields,
    )


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    # The template of the tests puts a space before the end of a turn.
    return [{"role": "user", "content": question}, {"role": "assistant", "content": f"{answer} "}]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(config())


CONVERSATIONS = [conversation("1 2 3", "4"), conversation("5", "6 7 8 9 10"), conversation("11 12", "13 14")]


def test_logprobs_of_padded_batches_are_those_of_single_sequences(model: Any, tokenizer: Any) -> None:
    with held_out.evaluating(model):
        computed = held_out.response_logprobs(model, tokenizer, CONVERSATIONS)
    exact = LlamaForCausalLM(config()).double()
    exact.load_state_dict(model.state_dict())
    for messages, logprobs in zip(CONVERSATIONS, computed, strict=True):
        words = f"<user> {messages[0]['content']} <end> <assistant> {messages[1]['content']} <end>".split()
        ids = [WORDS.index(word) for word in words]
        answer = len(messages[1]["content"].split()) + 1
        expected = []
        for position in range(len(ids) - answer, len(ids)):
            logits = exact(input_ids=torch.tensor([ids[:position]])).logits[0, -1]
            expected.append(float(torch.log_softmax(logits.detach(), -1)[ids[position]]))
        assert logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_loss_weighs_every_token_alike(model: Any, tokenizer: Any) -> None:
    rows = [{"messages": messages} for messages in CONVERSATIONS]
    with held_out.evaluating(model):
        logprobs = held_out.response_logprobs(model, tokenizer, CONVERSATIONS)
    total, count = sum(float(each.sum()) for each in logprobs), sum(map(len, logprobs))
    assert held_out.demonstration_loss(model, tokenizer, rows) == pytest.approx(-total / count, abs=1e-6)


def test_scores_are_those_of_transformers_without_padding(tokenizer: Any) -> None:
    torch.manual_seed(1)
    judge: Any = LlamaForSequenceClassification(config(num_labels=1))
    scores = held_out.scores(judge, tokenizer, CONVERSATIONS)
    with held_out.evaluating(judge):
        for messages, score in zip(CONVERSATIONS, scores.tolist(), strict=True):
            ids = held_out.prompt_tokens(tokenizer, messages[:-1]) + held_out.response_tokens(
                tokenizer, messages
            )
            hidden = judge.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            assert score == pytest.approx(float(judge.score(hidden)[0]), abs=1e-5)


def test_pair_metrics_count_a_tie_as_a_half() -> None:
    metrics = held_out.pair_metrics(torch.tensor([1.0, -2.0, 0.0, 0.5]))
    assert metrics["val/accuracy"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    losses = [math.log1p(math.exp(-margin)) for margin in (1.0, -2.0, 0.0, 0.5)]
    assert metrics["val/loss"] == pytest.approx(sum(losses) / 4, abs=1e-6)


def test_samples_end_at_the_end_token_and_leave_the_generator_alone(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sampled = held_out.sample_responses(model, tokenizer, [each[:-1] for each in CONVERSATIONS], 20)
    assert torch.equal(torch.rand(3), expected)
    again = held_out.sample_responses(model, tokenizer, [each[:-1] for each in CONVERSATIONS], 20)
    assert sampled == again
    for messages, (prompt, response) in zip(CONVERSATIONS, sampled, strict=True):
        assert prompt == held_out.prompt_tokens(tokenizer, messages[:-1])
        assert 1 <= len(response) <= 20
        assert 0 not in response[:-1]


def test_samples_of_a_batch_are_those_of_single_prompts(model: Any, tokenizer: Any) -> None:
    # Nearly all probability is on one token, so that samples do not depend on the random numbers.
    certain = copy.deepcopy(model)
    certain.lm_head.weight.data *= 1e4
    prompts = [each[:-1] for each in CONVERSATIONS]
    together = held_out.sample_responses(certain, tokenizer, prompts, 6)
    alone = [held_out.sample_responses(certain, tokenizer, [prompt], 6)[0] for prompt in prompts]
    assert together == alone
    assert len({tuple(response) for _, response in alone}) > 1


def test_mean_reward_is_that_of_the_sampled_texts(model: Any, tokenizer: Any) -> None:
    rows = [{"messages": each[:-1], "answer": str(i)} for i, each in enumerate(CONVERSATIONS)]
    scored: list[tuple[str, str]] = []

    def reward(prompts: Any, responses: list[str], answer: list[str]) -> list[float]:
        scored.extend(zip(responses, answer, strict=True))
        return [float(i) for i in range(len(responses))]

    assert held_out.mean_reward(model, tokenizer, rows, 6, reward) == 1.0
    sampled = held_out.sample_responses(model, tokenizer, [row["messages"] for row in rows], 6)
    texts = [tokenizer.decode(response, skip_special_tokens=True) for _, response in sampled]
    assert scored == list(zip(texts, ["0", "1", "2"], strict=True))
