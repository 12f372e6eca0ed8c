"""Conversations of agents that split into several sequences, through the torch engine in a real job."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared
from support.chat_templates import FAMILIES
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

FAMILY = FAMILIES["smollm2"]
PROMPTS, SAMPLES, TURN_TOKENS = 2, 2, 6

#: Asks in two turns, under another system prompt, and without the turn in the middle. The reward is the
#: number of the file with the requests and the answers.
AGENT = """
import json
import pathlib

from openai import AsyncOpenAI

FOLDER = pathlib.Path({folder!r})


async def solve(client, row):
    log = []

    async def ask(policy, messages):
        reply = await policy.chat.completions.create(
            model=client.model, messages=messages, max_tokens={tokens}, logprobs=True
        )
        (choice,) = reply.choices
        logprobs = [token.logprob for token in choice.logprobs.content]
        log.append({{"messages": messages, "answer": choice.message.content, "logprobs": logprobs}})
        return {{"role": "assistant", "content": choice.message.content}}

    first = row.columns["messages"]
    question = first[-1:]
    more = {{"role": "user", "content": "and one"}}
    again = {{"role": "user", "content": "again"}}
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as policy:
        one = await ask(policy, first)
        two = await ask(policy, [*first, one, more])
        await ask(policy, [{{"role": "system", "content": "the model"}}, *question])
        await ask(policy, [*first, two, again])
    number = len(list(FOLDER.iterdir()))
    (FOLDER / f"{{number}}.json").write_text(json.dumps(log))
    return float(number)
"""

#: Requests of each sequence, by their number.
SEQUENCES = [[0, 1], [2], [3]]


def conversation_job(folder: Path, log: Path) -> Path:
    """Write a GRPO job of one step with the agent. Return the file."""
    FAMILY.tokenizer().save_pretrained(folder / "tokenizer")
    (folder / "agent.py").write_text(AGENT.format(folder=str(log), tokens=TURN_TOKENS))
    rows = [
        {"messages": [{"role": "system", "content": "helpful"}, {"role": "user", "content": content}]}
        for content in ("one", "what is two")
    ]
    (folder / "asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    architecture = ARCHITECTURE | {"max_position_embeddings": 512}
    tokenizer = {"path": str(folder / "tokenizer")}
    job = online_job(
        folder,
        "conversations",
        {"grpo": {"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}},
        maxSteps=1,
        policy={"model": {"config": {"architecture": architecture, "tokenizer": tokenizer}}},
        data={"prompts": {"source": {"path": str(folder / "asked.jsonl")}, "format": {"chat": {}}}},
        rewards=[{"name": "talk", "episode": {}}],
        rollout={
            "sampling": {"maxTokens": 200},
            "maxSequencesPerSample": len(SEQUENCES),
            "workflow": {"agent": {"function": {"file": {"path": str(folder / "agent.py")}}}},
        },
        checkpoint={"everySteps": 1, "recordBatches": True},
    )
    return write_jobs(folder, job)


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def policy_turns(sequence: Batch) -> list[tuple[int, int]]:
    """Return start and end of each run of tokens with a loss."""
    mask = [0, *sequence.token("loss_mask").tolist(), 0]
    edges = [index for index, (left, right) in enumerate(itertools.pairwise(mask)) if left != right]
    return list(zip(edges[::2], edges[1::2], strict=True))


def check_sequence(
    sequence: Batch, requests: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check tokens and mask against the chat template, and the answers against what the agent received."""
    tokens, turns = sequence.tokens.tolist(), policy_turns(sequence)
    assert len(turns) == len(requests)
    end = tokenizer.convert_tokens_to_ids(FAMILY.end)
    stops = {end, tokenizer.eos_token_id}
    assert tokens[: turns[0][0]] == rendered(tokenizer, requests[0]["messages"])
    assert turns[-1][1] == len(tokens)
    for (start, stop), request in zip(turns, requests, strict=True):
        answer = tokens[start:stop]
        assert 1 <= len(answer) <= TURN_TOKENS
        assert tokenizer.decode(answer, skip_special_tokens=True) == request["answer"]
        assert len(answer) == TURN_TOKENS or answer[-1] in stops
        received = sequence.token("behaviour_logprobs")[start:stop].tolist()
        assert received == pytest.approx(request["logprobs"], abs=1e-6)
    for (_, stop), (start, _), request in zip(turns, turns[1:], requests[1:], strict=False):
        between = "\n<|im_start|>user\n" + request["messages"][-1]["content"] + FAMILY.end
        expected = tokenizer(between + "\n<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
        # The end of the turn follows a turn that its length has ended.
        opening = [] if tokens[stop - 1] == end else [end]
        assert tokens[stop:start] == [*opening, *expected]


def test_a_conversation_splits_into_the_sequences_of_its_requests(tmp_path: Path) -> None:
    """Each sequence is what the template renders, and the engine's log-probabilities are the model's."""
    log = tmp_path / "log"
    log.mkdir()
    with RunningJobs(conversation_job(tmp_path, log), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output[-4000:]
        metrics, folder = run.steps("conversations")[1], run.folder("conversations")
    prepared = load_prepared(folder)
    model = AutoModelForCausalLM.from_pretrained(prepared.model_folder("policy"), dtype=torch.float32)
    (batch,) = recorded_batches(folder, 1)
    assert metrics["rollout/sequences_per_sample"] == len(SEQUENCES)
    assert len(batch) == PROMPTS * SAMPLES * len(SEQUENCES)
    numbers = read_scores(batch, "talk")
    assert sorted(numbers[:: len(SEQUENCES)]) == list(range(PROMPTS * SAMPLES))
    for index, number in enumerate(numbers):
        requests = json.loads((log / f"{int(number)}.json").read_text())
        sequence = batch.select([index])
        members = SEQUENCES[index % len(SEQUENCES)]
        check_sequence(sequence, [requests[member] for member in members], prepared.tokenizer)
        with torch.no_grad():
            logits = model(sequence.tokens[None].long()).logits[0]
        expected = logits[:-1].log_softmax(-1).gather(1, sequence.tokens[1:, None].long())[:, 0]
        mask = sequence.token("loss_mask").bool()
        actual = sequence.token("behaviour_logprobs")
        assert actual[mask].tolist() == pytest.approx(expected[mask[1:]].tolist(), abs=1e-4)
        assert not actual[~mask].any()
