"""Rounds over a bus, with a real worker, engine and backend: a round is generated once, is regenerated if its
weights are gone, and no prompt is lost or used twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_128_hexdigest

from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.sources.iterative.round_files import RoundFiles, StoredRound
from kubealign_services.roles.driver.state import JobState
from support.rounds_in_process import Policy, RoundsJob, rounds_job

pytestmark = pytest.mark.timeout(60)

LETTERS = "abcd"
PROMPTS = [first + last for first in LETTERS for last in LETTERS]
# Two steps per round.
SAMPLING = {"rounds": 3, "promptsPerRound": 8, "samplesPerPrompt": 2, "rowsPerStep": 4}
BEST = {"rejectionSampling": SAMPLING}


def share_of_a(prompt: str, response: str) -> float:
    return response.count("a") / max(1, len(response))


class Stage:
    """A run's folder and its policy, shared by consecutive attempts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.policy = Policy(folder, train_character_tokenizer([*PROMPTS, "?7"]), learning_rate=1e-2)
        self.rows = [self.policy.row(number, prompt, "a") for number, prompt in enumerate(PROMPTS)]

    def job(
        self,
        algorithm: dict[str, Any] | None = None,
        state: JobState | None = None,
        fence: int = 1,
        **more: Any,
    ) -> Any:
        chosen = BEST if algorithm is None else algorithm
        rewarded = "rejectionSampling" in chosen
        kind = "demonstrations" if "spin" in chosen else "prompts"
        return rounds_job(
            self.folder,
            self.policy,
            self.rows,
            chosen,
            kind,
            max_tokens=3,
            reward=share_of_a if rewarded else None,
            state=state,
            fence=fence,
            **more,
        )

    def sampled(self) -> list[str]:
        """Return the groups generated since the previous call."""
        requests = list(self.policy.asked)
        self.policy.asked.clear()
        return requests

    def commit(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir()
        self.policy.backend.save(path)
        return path

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "rounds").glob("*"))

    def weights(self) -> list[Any]:
        return [tensor.clone() for _, tensor in self.policy.backend.snapshot()]


def kept(stage: Stage, name: str) -> StoredRound:
    path = stage.folder / "rounds" / name
    return RoundFiles(stage.folder).read(name, xxh3_128_hexdigest(path.read_bytes()))


def carried(state: JobState) -> JobState:
    """Return a copy of the state as it is sent with a step."""
    return JobState.model_validate_json(state.model_dump_json())


def same(left: list[Any], right: list[Any]) -> bool:
    return all(bool((one == other).all()) for one, other in zip(left, right, strict=True))


async def undisturbed(folder: Path) -> tuple[Stage, RoundsJob]:
    stage = Stage(folder)
    async with stage.job() as job:
        await job.learn()
    return stage, job


async def test_each_round_has_the_next_prompts_and_two_steps(tmp_path: Path) -> None:
    stage, job = await undisturbed(tmp_path)
    assert job.state.step == 6 and job.state.finished == "the last of 3 rounds is done"
    assert [figures["round/number"] for figures in job.figures] == [1, 1, 2, 2, 3, 3]
    asked = [name.partition(":")[2] for name in stage.sampled()]
    assert len(set(asked)) == len(asked) == 24
    # The 16 prompts of the first epoch last for one and a half rounds.
    assert sorted(asked[:16]) == sorted(f"0/{row}" for row in range(16))
    assert all(name.startswith("1/") for name in asked[16:])
    assert stage.files() == [f"round-00000{number}-fence-1" for number in (1, 2, 3)]
    assert job.begun()[0]["round/chosen_reward"] >= job.begun()[0]["round/reward_mean"]
    assert job.begun()[0]["rollout/logprob_gap_mean"] < 1e-4


async def test_rounds_draw_from_a_mixture(tmp_path: Path) -> None:
    """12 and 4 rows of equal weights: the smaller source is drawn twice in the first epoch, of two rounds."""
    stage = Stage(tmp_path)
    async with stage.job(mixture={"many": 12, "few": 4}) as job:
        await job.learn(steps=4)
    asked = [name.partition(":")[2] for name in stage.sampled()]
    assert len(set(asked)) == len(asked) == 16
    few = [f"{source_pass}/{row}" for source_pass in (0, 1) for row in range(12, 16)]
    assert sorted(name for name in asked if int(name.partition("/")[2]) >= 12) == few
    rows = {name: sum(step[f"data/source/{name}/rows"] for step in job.begun()) for name in ("many", "few")}
    assert rows == {"many": 8, "few": 8}
    for step in job.begun():
        for name in rows:
            assert (f"reward/source/{name}/mean" in step) == (step[f"data/source/{name}/rows"] > 0)


async def test_a_driver_that_dies_alone_goes_on_in_the_middle_of_the_round(tmp_path: Path) -> None:
    reference_run, steady = await undisturbed(tmp_path / "whole")
    stage = Stage(tmp_path / "cut")
    async with stage.job() as job:
        await job.learn(steps=3)
    stage.sampled()
    async with stage.job(state=carried(job.state), fence=2) as again:
        await again.learn()
        assert len(stage.sampled()) == 8, "round 2 was not sampled again, round 3 was"
    assert again.state == steady.state.model_copy(update={"round": again.state.round})
    assert same(reference_run.weights(), stage.weights())


async def test_existing_round_is_not_sampled_again(tmp_path: Path) -> None:
    """Let the driver die after it has written the round's file and before the round's first step."""
    stage = Stage(tmp_path)
    async with stage.job() as job:
        await job.learn(steps=2)
        before = carried(job.state)
        await job.learn(rounds=2)
    assert stage.files()[-1] == "round-000002-fence-1"
    # Undo the step: a second stage provides the weights of the round's start.
    again = Stage(tmp_path / "again")
    async with again.job() as job:
        await job.learn(steps=2)
    stage.policy, asked = again.policy, stage.sampled()
    again.sampled()
    assert len(asked) == 16
    async with stage.job(state=before, fence=2) as job:
        await job.learn(steps=4)
        assert stage.sampled() == []
        assert job.figures[0]["round/reward_mean"] > 0, "its figures are told again"
    assert stage.files() == ["round-000001-fence-1", "round-000002-fence-1"]


async def learn_until_asked(stage: Stage, job: RoundsJob, groups: int) -> None:
    """Let the driver die in the middle of a round, when the policy was asked for this number of groups."""
    learning = asyncio.create_task(job.learn())
    async with asyncio.timeout(30):
        while len(stage.policy.asked) < groups:  # noqa: ASYNC110
            await asyncio.sleep(0)
    learning.cancel()
    await asyncio.gather(learning, return_exceptions=True)


async def test_half_sampled_round_is_regenerated(tmp_path: Path) -> None:
    reference_run, steady = await undisturbed(tmp_path / "whole")
    stage = Stage(tmp_path / "cut")
    async with stage.job() as job:
        await learn_until_asked(stage, job, 11)
        assert job.state.step == 2 and stage.files() == ["round-000001-fence-1"]
    stage.sampled()
    async with stage.job(state=carried(job.state), fence=2) as again:
        await again.learn()
    assert len(stage.sampled()) == 16
    assert again.state.cursor == steady.state.cursor
    assert same(reference_run.weights(), stage.weights())


async def test_half_sampled_round_is_the_same_whatever_the_window(tmp_path: Path) -> None:
    """The round has 48 groups. One job requests all of them at once; the other at most eight at a time, and
    its driver dies after 30.
    """
    entry = {"rejectionSampling": SAMPLING | {"rounds": 1, "promptsPerRound": 48, "rowsPerStep": 24}}
    at_once = Stage(tmp_path / "at_once")
    async with at_once.job(entry) as steady:
        await steady.learn()
    stage = Stage(tmp_path / "window")
    async with stage.job(entry, max_sequences=4) as job:
        await learn_until_asked(stage, job, 30)
        assert stage.files() == [], "the round was being sampled"
    stage.sampled()
    async with stage.job(entry, state=carried(job.state), fence=2, max_sequences=4) as again:
        await again.learn()
    requested = [name.partition(":")[2] for name in stage.sampled()]
    assert requested == kept(stage, "round-000001-fence-2").header.prompts
    assert requested == kept(at_once, "round-000001-fence-1").header.prompts
    assert again.state.cursor == steady.state.cursor
    assert same(at_once.weights(), stage.weights())


async def test_rollback_regenerates_rows_of_lost_weights(tmp_path: Path) -> None:
    """Roll back to a checkpoint in the middle of round 1. The repeated steps and version 2 differ."""
    stage = Stage(tmp_path)
    async with stage.job() as job:
        await job.learn(steps=1)
        commit, state = stage.commit("one"), carried(job.state)
        await job.learn(steps=3)
    first = kept(stage, "round-000002-fence-1")
    stage.sampled()
    stage.policy.go_back(commit)
    stage.policy.set_learning_rate(2e-2)
    async with stage.job(state=state, fence=2) as again:
        await again.learn(steps=4)
    asked = [name.partition(":")[2] for name in stage.sampled()]
    second = kept(stage, "round-000002-fence-2")
    assert sorted(asked) == sorted(second.header.prompts) == sorted(first.header.prompts)
    assert second.header.version == first.header.version == 2
    assert second.header.weights != first.header.weights
    assert again.state.round.file == "round-000002-fence-2"


async def test_rollback_to_equal_weights_samples_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.job() as job:
        await job.learn(steps=1)
        commit, state = stage.commit("one"), carried(job.state)
        await job.learn(steps=3)
    reached = stage.weights()
    stage.sampled()
    stage.policy.go_back(commit)
    async with stage.job(state=state, fence=2) as again:
        await again.learn(steps=3)
    assert stage.sampled() == []
    assert same(stage.weights(), reached)


async def test_state_without_a_round_starts_the_first_round(tmp_path: Path) -> None:
    document = JobState().model_dump(mode="json")
    del document["round"]
    stage = Stage(tmp_path)
    async with stage.job(state=JobState.model_validate(document)) as job:
        await job.learn(steps=1)
    assert job.state.round.number == 1


async def test_a_round_without_rows_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    entry = SAMPLING | {"minimumReward": 2.0}
    async with Stage(tmp_path).job({"rejectionSampling": entry}) as job:
        with pytest.raises(
            UnrecoverableError, match=r"round 1: the best of 16 rewards is .* below minimumReward \(2\)"
        ):
            await job.learn()


JUDGE = {"prompt": "{response}?", "pattern": "([abcd])", "maxTokens": 2}


async def test_a_judge_that_cannot_be_read_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    """Use a judge whose pattern finds letters, which are not numbers."""
    stage = Stage(tmp_path)
    async with stage.job({"selfRewarding": SAMPLING | {"judge": JUDGE}}) as job:
        with pytest.raises(UnrecoverableError, match="none of 16 responses got a score from the judge"):
            await job.learn()
    asked = stage.sampled()
    assert len([name for name in asked if name.startswith("judge:")]) == 16
    assert "judge:0/3#1" in asked


async def test_questions_that_do_not_fit_the_context_are_not_asked(tmp_path: Path) -> None:
    """Check that long questions are skipped. The context has six tokens and the judgement takes two, so a
    question has at most four tokens: a response of three and a question mark."""
    stage = Stage(tmp_path)
    judge = JUDGE | {"prompt": "{prompt}{response}?"}
    async with stage.job({"selfRewarding": SAMPLING | {"judge": judge}}, context=6) as job:
        with pytest.raises(UnrecoverableError, match="none of 16 responses"):
            await job.learn()
        (answers,) = job.answers
    lengths = [
        len(stage.policy.tokenizer(f"{answer.prompt}{answer.response}?")["input_ids"]) for answer in answers
    ]
    short = [length for length in lengths if length <= 4]
    assert 0 < len(short) < 16
    assert len([name for name in stage.sampled() if name.startswith("judge:")]) == len(short)


async def test_judge_with_equal_scores(tmp_path: Path) -> None:
    """Check equal scores: the judge can only write 7. In the first round that is an error; in a later round
    the job ends successfully."""
    judge = JUDGE | {"pattern": "([0-9])", "samples": 4}
    entry = {"selfRewarding": SAMPLING | {"judge": judge}}
    later = JobState()
    later.round = later.round.model_copy(update={"number": 1})
    stage = Stage(tmp_path)
    async with stage.job(entry) as job:
        with pytest.raises(UnrecoverableError, match=r"round 1: no prompt's .*; no row came of it"):
            await job.learn()
    async with stage.job(entry, state=later, fence=2) as job:
        assert await job.learn() == []
        assert "round 2: no prompt's best and worst scores differ" in job.state.finished


async def test_spin_reads_the_demonstrations_and_is_its_own_reference(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.job({"spin": SAMPLING | {"samplesPerPrompt": 1}}) as job:
        await job.learn(steps=3)
    round_one = kept(stage, "round-000001-fence-1")
    demonstration: PreparedRow = stage.rows[0]
    assert round_one.header.unit == 2 and round_one.rows == 8
    pair = round_one.select_rows([0])
    assert pair.sample_ids[0] == pair.sample_ids[1] + "/demonstration"
    chosen = pair.select([0])
    assert chosen.tokens[chosen.token("loss_mask").bool()].tolist() == demonstration.response_tokens
    reference = round_one.batch.token("reference_logprobs")
    assert bool((reference[round_one.batch.token("loss_mask").bool()] < 0).all())
    margins = [figures["preference/margin"] for figures in job.begun()]
    assert margins == pytest.approx([0, 0], abs=1e-5), "each round's start is its reference"
    assert abs(job.figures[1]["preference/margin"]) > 1e-3
