"""Curriculum: pools by mean rewards, exact shares, a complete first epoch, the same draws after a resume."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubealign.spec.sections.curriculum import EasyPrompts, HardPrompts, PromptCurriculum
from kubealign.spec.sections.rewards import Reward, RewardFunction
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.auxiliary_sequences import IS_BASELINE
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import add_scores
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.checkpoints.history import StepHistory, TrainedStep, history_path, read_history
from kubealign_services.checkpoints.lineage import record_start
from kubealign_services.data.epoch_shuffle import DatasetOrder, RowOrder
from kubealign_services.data.mixture import MixedSource, MixtureOrder
from kubealign_services.roles.driver.checkpoints import TrainingHistory
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.curriculum import (
    Curriculum,
    MeanReward,
    Pool,
    classify,
    is_drawn,
)
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts
from kubealign_services.roles.driver.state import JobState

REWARDS = [
    Reward(name=name, weight=weight, function=RewardFunction(module="a:b"))
    for name, weight in (("exact", 2.0), ("length", 0.5))
]
EXACT = [REWARDS[0].model_copy(update={"name": "exact", "weight": 1.0})]
SPEC = PromptCurriculum(easy=EasyPrompts(at_least=0.9, share=0.5), hard=HardPrompts(at_most=0.1, share=0.25))


def batch_of(rewards: dict[str, Sequence[float]], length: float = 0.0) -> Batch:
    """Return a batch with one token for each sample: prompt -> its samples' rewards."""
    samples = [(prompt, i, value) for prompt, values in rewards.items() for i, value in enumerate(values)]
    return Batch(
        tokens=torch.zeros(len(samples), dtype=torch.int32),
        cu_seqlens=torch.arange(len(samples) + 1, dtype=torch.int32),
        sample_ids=[f"{prompt}#{i}" for prompt, i, _ in samples],
        sequence_columns={
            "reward.exact": torch.tensor([value for _, _, value in samples], dtype=torch.float64),
            "reward.length": torch.full((len(samples),), length, dtype=torch.float64),
        },
    )


def group_of(prompt: str, rewards: Sequence[float], length: float = 0.0) -> RolloutGroup:
    """Return a complete group whose samples have these rewards."""
    group = RolloutGroup(prompt, len(rewards), min_version=0, deadline=0.0, requested_at=0.0)
    for sample, reward in enumerate(rewards):
        group.rollouts[sample] = rollout_pb2.Rollout(sample=sample)
        group.scores[sample, "", "exact"] = scoring_pb2.Score(reward=reward)
        group.scores[sample, "", "length"] = scoring_pb2.Score(reward=length)
    return group


def next_prompt(prompts: EpochPrompts) -> str | None:
    """Return the next prompt, which is there without waiting."""
    try:
        prompts.next_prompt().send(None)
    except StopIteration as result:
        return result.value  # type: ignore[no-any-return]
    raise AssertionError("prepared prompts were waited for")


class Job:
    """A job without a trainer: each step takes prompts, `ahead` of which are requested before their turn.

    trained: prompts of each step. Every prompt has the reward that `rate` gives its row.
    """

    def __init__(
        self, spec: PromptCurriculum, order: RowOrder, rates: Sequence[float], ahead: int = 0
    ) -> None:
        self.spec, self.order, self.rates, self.ahead = spec, order, rates, ahead
        self.state = JobState()
        self.history: list[TrainedStep] = []
        self.requested: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Continue from the committed state, as a new driver does."""
        mean_reward = MeanReward(EXACT)
        self.curriculum = Curriculum(self.spec, mean_reward, self.order, 5, self.state, self.history)
        self.prompts = EpochPrompts(
            [],  # type: ignore[arg-type]
            self.order,
            self.state.cursor,
            self.state.unfinished,
            curriculum=self.curriculum,
        )
        self.requested = []

    def step(self, size: int, drop: int = 0) -> None:
        """Train on `size` prompts after dropping `drop`."""
        self.curriculum.commit(self.state)
        while len(self.requested) < size + drop + self.ahead:
            prompt = next_prompt(self.prompts)
            assert prompt is not None
            self.requested.append(prompt)
        for prompt in self.requested[:drop]:
            self.curriculum.measure_dropped(group_of(prompt, [self.rate(prompt)]))
        trained = self.requested[drop : drop + size]
        self.requested = self.requested[drop + size :]
        self.curriculum.measure(batch_of({prompt: [self.rate(prompt)] for prompt in trained}))
        after = self.state.copy_for_next_step()
        after.cursor, after.trained = self.prompts.cursor, trained
        after.unfinished = [*self.requested, *self.prompts.unfinished]
        after.curriculum = self.curriculum.state_after(trained)
        # A state is stored and sent as JSON.
        self.state = JobState.model_validate_json(after.model_dump_json())
        line = TrainedStep(
            fence=1,
            step=after.step,
            version=after.step,
            prompts=trained,
            dropped=after.curriculum.dropped,
            mean_rewards=after.curriculum.mean_rewards,
        )
        self.history.append(TrainedStep.model_validate_json(line.to_line()))

    def rate(self, prompt: str) -> float:
        return self.rates[int(prompt.partition("/")[2])]

    @property
    def drawn(self) -> list[str]:
        """Prompts drawn so far, in the order of training, then those in flight."""
        measured = [[*line.dropped, *line.prompts] for line in self.history]
        return [*(prompt for step in measured for prompt in step), *self.state.unfinished]


rates = st.lists(st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]), min_size=1, max_size=24)


@st.composite
def orders(draw: st.DrawFn) -> tuple[RowOrder, list[float]]:
    """Draw an order of rows, with or without a mixture, and the reward of each row."""
    values = draw(rates)
    shuffle = draw(st.booleans())
    if draw(st.booleans()):
        return DatasetOrder(len(values), 3, shuffle), values
    other = draw(rates)
    sources = [MixedSource("a", draw(st.integers(1, 4)), len(values)), MixedSource("b", 1, len(other))]
    return MixtureOrder(sources, 3, shuffle), values + other


@given(
    share=st.sampled_from([0.01, 0.1, 0.2, 0.25, 0.3, 0.5, 0.9, 1.0]),
    draws=st.integers(0, 200),
    offset=st.fractions(0, 1).filter(lambda offset: offset < 1),
)
@example(share=0.2, draws=10, offset=1 - Fraction(1, 1 << 64))
def test_the_number_of_draws_is_exact(share: float, draws: int, offset: Fraction) -> None:
    drawn = sum(is_drawn(share, offset, index) for index in range(draws))
    quota = Fraction(str(share)) * draws
    assert drawn in {floor(quota), ceil(quota)}


def test_each_draw_is_equally_likely() -> None:
    # Offsets in the middle of 300 equal intervals: 3 of 10 draws, each in 30 % of the cases.
    offsets = [Fraction(2 * i + 1, 600) for i in range(300)]
    taken = [sum(is_drawn(0.3, offset, index) for offset in offsets) for index in range(20)]
    assert taken == [90] * 20


@settings(max_examples=30)
@given(case=orders(), size=st.integers(1, 7), ahead=st.integers(0, 9), seed=st.integers(0, 9))
def test_accounts_for_each_draw_once(
    case: tuple[RowOrder, list[float]], size: int, ahead: int, seed: int
) -> None:
    """Every draw of the epochs is drawn or skipped; none is skipped in the first epoch or without a pool."""
    order, values = case
    job = Job(SPEC, order, values, ahead)
    while job.state.cursor.epoch < 4:
        job.step(size, drop=seed % 3)
    cursor = job.state.cursor
    passes = [order.draws(epoch, 0, order.rows) for epoch in range(cursor.epoch)]
    passes.append(order.draws(cursor.epoch, 0, cursor.position))
    names = [f"{draw.source_pass}/{draw.row}" for draws in passes for draw in draws]
    taken = set(job.drawn)
    assert [name for name in names if name in taken] == job.drawn  # in order, and each once
    assert job.state.curriculum is not None
    skipped = [name for name in names if name not in taken]
    assert len(skipped) == job.state.curriculum.skipped
    assert not set(skipped) & {f"{draw.source_pass}/{draw.row}" for draw in passes[0]}
    assert all(classify(job.rate(name), SPEC) is not Pool.NORMAL for name in skipped)


@settings(max_examples=30)
@given(case=orders())
def test_shares_of_each_source(case: tuple[RowOrder, list[float]]) -> None:
    """One step for each epoch: the pools are those of the epoch before."""
    order, values = case
    job = Job(SPEC, order, values)
    known: set[int] = set()
    for epoch in range(4):
        draws = order.draws(epoch, 0, order.rows)
        expected: Counter[tuple[str | None, Pool]] = Counter()
        for draw in draws:
            pool = classify(values[draw.row], SPEC) if draw.row in known else Pool.NORMAL
            expected[order.source_of(draw.row), pool] += 1
        drawn: Counter[tuple[str | None, Pool]] = Counter()
        job.curriculum.commit(job.state)
        for draw in draws:
            pool = classify(values[draw.row], SPEC) if draw.row in known else Pool.NORMAL
            drawn[order.source_of(draw.row), pool] += job.curriculum.should_draw(epoch, draw.row)
        for (source, pool), count in expected.items():
            quota = {Pool.NORMAL: 1, Pool.EASY: Fraction(1, 2), Pool.HARD: Fraction(1, 4)}[pool] * count
            assert drawn[source, pool] in {floor(quota), ceil(quota)}
        trained = [f"{draw.source_pass}/{draw.row}" for draw in draws]
        job.curriculum.measure(batch_of({name: [job.rate(name)] for name in trained}))
        after = job.state.copy_for_next_step()
        after.trained, after.curriculum = trained, job.curriculum.state_after(trained)
        job.state = after
        known |= {draw.row for draw in draws}


@settings(max_examples=30)
@given(
    case=orders(),
    ahead=st.integers(0, 9),
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.booleans()), min_size=1, max_size=14),
)
def test_same_draws_after_a_resume_at_any_step(
    case: tuple[RowOrder, list[float]], ahead: int, sizes: list[tuple[int, int, bool]]
) -> None:
    whole, resumed = (Job(SPEC, *case, ahead) for _ in range(2))
    for size, drop, stops in sizes:
        whole.step(size, drop)
        resumed.step(size, drop)
        if stops:
            resumed.restart()
        assert resumed.state == whole.state
    assert resumed.history == whole.history


def test_a_rollback_repeats_the_draws() -> None:
    job = Job(SPEC, DatasetOrder(9, 1), [1.0, 0.0, 0.5] * 3, ahead=2)
    states = [job.state]
    for _ in range(12):
        job.step(4)
        states.append(job.state)
    history, job.history = job.history, job.history[:5]
    job.state = states[5]
    job.restart()
    for _ in range(7):
        job.step(4)
    assert (job.history, job.state) == (history, states[-1])


async def test_a_step_that_the_history_lacks_is_recorded_from_the_state(tmp_path: Path) -> None:
    """The driver died between the step and its line of the history."""
    job = Job(SPEC, DatasetOrder(9, 1), [1.0, 0.0, 0.5] * 3)
    for _ in range(3):
        job.step(2, drop=1)
    record_start(Fence(tmp_path, 1), 0)
    for line in job.history[:2]:
        StepHistory(history_path(tmp_path, 1)).append(line)
    fence = Fence(tmp_path, 2)
    await TrainingHistory(fence, record_start(fence, 3)).resume_at(job.state)
    assert [line.model_copy(update={"fence": 1}) for line in read_history(tmp_path)] == job.history
    assert [line.fence for line in read_history(tmp_path)] == [1, 1, 2]


def test_pools_as_worked_by_hand() -> None:
    # Row 0 is easy, row 1 hard, row 2 between; row 3 is in flight when the second epoch begins.
    job = Job(SPEC, DatasetOrder(4, 1, shuffle=False), [0.9, 0.1, 0.5, 1.0], ahead=2)
    job.step(2)
    assert job.state.trained == ["0/0", "0/1"] and job.state.unfinished == ["0/2", "0/3"]
    assert job.curriculum.metrics() == {"curriculum/easy": 0, "curriculum/hard": 0, "curriculum/skipped": 0}
    job.step(1)
    assert job.state.trained == ["0/2"]
    assert job.state.curriculum is not None and job.state.curriculum.pools_step == 1
    # Rows 0 and 1 were measured by the committed step 1, rows 2 and 3 were not.
    metrics = job.curriculum.metrics()
    assert (metrics["curriculum/easy"], metrics["curriculum/hard"]) == (1, 1)
    while job.state.cursor.epoch == 1:
        job.step(1)
    job.step(3)
    metrics = job.curriculum.metrics()
    assert job.state.cursor.epoch >= 2
    assert (metrics["curriculum/easy"], metrics["curriculum/hard"]) == (2, 1)


def test_rewards_of_an_uncommitted_step_decide_nothing() -> None:
    job = Job(SPEC, DatasetOrder(2, 1, shuffle=False), [1.0, 0.0])
    assert [next_prompt(job.prompts) for _ in range(2)] == ["0/0", "0/1"]
    # Dynamic sampling drops both prompts, and those of the next epoch take their place.
    for prompt in ("0/0", "0/1"):
        job.curriculum.measure_dropped(group_of(prompt, [job.rate(prompt)]))
    assert [next_prompt(job.prompts) for _ in range(2)] == ["1/0", "1/1"]
    assert job.curriculum.metrics() == {"curriculum/easy": 0, "curriculum/hard": 0, "curriculum/skipped": 0}


def test_no_prompt_is_skipped_for_ever() -> None:
    job = Job(SPEC, DatasetOrder(4, 1, shuffle=False), [1.0] * 4)
    for _ in range(24):
        job.step(1)
    later = Counter(name.partition("/")[2] for name in job.drawn if not name.startswith("0/"))
    # Two of the four in each of ten epochs.
    assert later.total() == 20 and all(later[str(row)] >= 2 for row in range(4))


def test_a_prompt_moves_with_its_latest_reward() -> None:
    job = Job(SPEC, DatasetOrder(2, 1, shuffle=False), [1.0, 0.5])
    job.step(2)
    job.rates = [0.5, 0.0]
    sizes = []
    for _ in range(20):
        job.step(1)
        metrics = job.curriculum.metrics()
        sizes.append((metrics["curriculum/easy"], metrics["curriculum/hard"]))
    assert sizes[0] == (1, 0)  # after the first epoch
    assert sizes[-1] == (0, 1)  # both rows have been drawn again


@pytest.mark.parametrize(
    ("mean", "pool"),
    [(0.9, Pool.EASY), (0.8999, Pool.NORMAL), (0.1, Pool.HARD), (0.1001, Pool.NORMAL), (-7.0, Pool.HARD)],
)
def test_thresholds_belong_to_the_pools(mean: float, pool: Pool) -> None:
    assert classify(mean, SPEC) is pool


def test_rounding_does_not_move_a_prompt() -> None:
    assert 0.7 + 0.2 < 0.9
    assert classify(0.7 + 0.2, SPEC) is Pool.EASY


def test_only_the_given_pool_exists() -> None:
    only_hard = PromptCurriculum(hard=HardPrompts(at_most=0.0))
    assert [classify(mean, only_hard) for mean in (1.0, 0.01, 0.0)] == [Pool.NORMAL, Pool.NORMAL, Pool.HARD]


def test_mean_reward_of_batches_and_groups() -> None:
    batch = batch_of({"0/1": [1, 0, 1], "0/2": [0, 0, 1]}, length=3.0)
    # 2 x 2/3 + 0.5 x 3 and 2 x 1/3 + 0.5 x 3: the weighted sum; a named reward is in its own units.
    assert MeanReward(REWARDS).of_batch(batch) == pytest.approx({"0/1": 17 / 6, "0/2": 13 / 6}, abs=1e-12)
    assert MeanReward(REWARDS, "exact").of_batch(batch) == pytest.approx({"0/1": 2 / 3, "0/2": 1 / 3})
    group = group_of("0/1", [1, 0, 1], length=3.0)
    assert MeanReward(REWARDS).of_group(group) == pytest.approx(17 / 6, abs=1e-12)
    assert MeanReward(REWARDS, "exact").of_group(group) == pytest.approx(2 / 3)


def test_a_greedy_baseline_does_not_count() -> None:
    batch = batch_of({"0/1": [1, 0, 1]})
    batch.sequence_columns[IS_BASELINE] = torch.tensor([0, 0, 1], dtype=torch.uint8)
    assert MeanReward(EXACT).of_batch(batch) == {"0/1": 0.5}


@pytest.mark.parametrize("damage", ["missing line", "altered reward", "altered prompt"])
def test_a_damaged_history_is_refused(damage: str) -> None:
    job = Job(SPEC, DatasetOrder(4, 1), [0.5] * 4)
    for _ in range(3):
        job.step(2)
    job.restart()
    line = job.history[1]
    if damage == "missing line":
        del job.history[1]
    elif damage == "altered reward":
        job.history[1] = line.model_copy(update={"mean_rewards": [0.5, 0.25]})
    else:
        job.history[1] = line.model_copy(update={"prompts": ["0/3", "0/3"]})
    with pytest.raises(UnrecoverableError, match="in the history are not those that step 3 was made with"):
        job.restart()


def test_the_mean_is_that_of_the_samples_to_which_the_reward_applies() -> None:
    batch = batch_of({"0/1": [1.0, 1.0], "0/2": [0.0, 0.0], "0/3": [0.0, 0.0]})
    add_scores(batch, "exact", [1.0, None, None, None, None, None])
    add_scores(batch, "length", [None, 4.0, 2.0, None, None, None])
    # 2 x 1 and 0.5 x 4; 0.5 x 2; none
    assert MeanReward(REWARDS).of_batch(batch) == {"0/1": 2.0, "0/2": 1.0, "0/3": None}
    assert MeanReward(REWARDS, "exact").of_batch(batch) == {"0/1": 1.0, "0/2": None, "0/3": None}
    group = group_of("0/1", [0.0, 1.0])
    group.scores[0, "", "exact"].ClearField("reward")
    assert MeanReward(REWARDS, "exact").of_group(group) == 1.0
    group.scores[1, "", "exact"].ClearField("reward")
    assert MeanReward(REWARDS, "exact").of_group(group) is None


def test_a_prompt_without_the_reward_stays_in_its_pool_also_after_a_resume(tmp_path: Path) -> None:
    order = DatasetOrder(2, seed=1, shuffle=False)
    curriculum = Curriculum(SPEC, MeanReward(EXACT, "exact"), order, 1, JobState(), [])
    state, history = JobState(), StepHistory(tmp_path / "history" / "fence-00000001.jsonl")
    for step, scores in enumerate([[1.0, 0.0], [None, 0.5]], start=1):
        batch = batch_of({"0/0": [0.0], "0/1": [0.0]})
        add_scores(batch, "exact", scores)
        curriculum.measure(batch)
        state = JobState(step=step, trained=["0/0", "0/1"], curriculum=curriculum.state_after(["0/0", "0/1"]))
        state = JobState.model_validate_json(state.model_dump_json())
        curriculum.commit(state)
        assert state.curriculum is not None
        line = TrainedStep(
            fence=1,
            step=step,
            version=step,
            prompts=state.trained,
            mean_rewards=state.curriculum.mean_rewards,
        )
        history.append(line)
    resumed = Curriculum(SPEC, MeanReward(EXACT, "exact"), order, 1, state, history.read())
    for each in (curriculum, resumed):
        # Row 0 was easy and has no newer reward; row 1 was hard.
        assert list(each._latest_pools) == [Pool.EASY, Pool.NORMAL]
