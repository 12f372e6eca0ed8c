"""An iterative job within one process: the driver's round source over an in-memory bus, a rollout worker with
a real engine, and the trainer's backend, without further processes and RPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import xxhash
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.prepared import PreparedJob, PreparedRow
from kubealign_services.data.tokenization.tokenizers import decode_ids
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.builder import JobContext
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews, TokenSplitter
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.sources.iterative.builder import build_round_source
from kubealign_services.roles.driver.sources.iterative.source import RoundSource
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.samples import ValidationSample
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.weights import FixedWeights
from kubealign_services.roles.rollout.worker import RolloutWorker
from kubealign_services.runtime.process.bus_load import bus_bounds
from kubealign_services.scoring.worker import ScoreWorker, empty_score
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from support.prepared_report import report
from support.tiny_jobs import ARCHITECTURE

#: (prompt, response) -> reward.
Reward = Callable[[str, str], float]

SEED = 1
ENDLESS = 1 << 30
MAX_SEQUENCES = 256


class AnyVersion(FixedWeights):
    """Never waits: the test loads the weights into the engine before a version is requested."""

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        return None


class Policy:
    """A model that is trained and sampled from. `asked`: PURPOSE:GROUP of every work item, in order."""

    def __init__(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        learning_rate: float,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.folder = folder / "model"
        sizes = ARCHITECTURE | {"initializer_range": 0.1} | (architecture or {})
        build_model(sizes, tokenizer, SEED, self.folder, "architecture")
        self._learning_rate = learning_rate
        self.backend = self._fresh()
        self.asked: list[str] = []
        self._engine = TorchRolloutEngine.create(self.folder, EngineSpec(max_sequences=MAX_SEQUENCES))

    def _fresh(self) -> TorchTrainingBackend:
        job = AlignmentJob.model_validate(_document({"sft": {}}, "demonstrations", self._learning_rate))
        return TorchTrainingBackend.create(
            self.folder, Head.LANGUAGE_MODEL, job.spec.effective_trainer, total_updates=10_000, seed=SEED
        )

    def row(self, number: int, prompt: str, response: str | None = None) -> PreparedRow:
        def ids(text: str) -> list[int]:
            token_ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return token_ids

        end = self.tokenizer.eos_token_id
        return PreparedRow(
            row=number,
            prompt_tokens=ids(prompt),
            prompt_text=prompt,
            response_tokens=None if response is None else [*ids(response), end],
        )

    def imitate(self, pairs: Sequence[tuple[str, str]], steps: int, rows_per_step: int) -> float:
        """Fine-tune on (prompt, response) pairs before the job. Return the last loss."""
        objective = make_algorithm(_algorithm({"sft": {}}, "demonstrations")).policy_objective()
        rows = [self.row(number, *pair) for number, pair in enumerate(pairs)]
        loss = float("nan")
        for step in range(steps):
            some = [rows[(step * rows_per_step + k) % len(rows)] for k in range(rows_per_step)]
            batch = collate(some, [str(k) for k in range(len(some))], "demonstrations")
            loss = self.backend.train_step(batch, objective, UpdatePlan(1, len(batch), step))["sft/loss"]
        return loss

    def set_learning_rate(self, rate: float) -> None:
        """Change the learning rate from the next step on, keeping weights and optimiser state."""
        self._learning_rate = rate
        checkpoint = self.folder.with_name("between")
        checkpoint.mkdir(exist_ok=True)
        self.backend.save(checkpoint)
        self.go_back(checkpoint)

    def go_back(self, checkpoint: Path) -> None:
        """Restore the weights and the optimiser state of a checkpoint."""
        self.backend = self._fresh()
        self.backend.load(checkpoint)


def _document(algorithm: dict[str, Any], kind: str, learning_rate: float) -> dict[str, Any]:
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": "rounds"},
        "spec": {
            "seed": SEED,
            "maxSteps": 10_000,
            "algorithm": algorithm,
            "policy": {"model": {"path": "/nowhere"}},
            "data": {kind: {"source": {"path": "/nowhere"}}},
            "trainer": {"optimizer": {"adamW": {"learningRate": learning_rate}}},
        },
    }


def _algorithm(algorithm: dict[str, Any], kind: str) -> Any:
    return AlignmentJob.model_validate(_document(algorithm, kind, 1.0)).spec.algorithm


class LocalTrainer:
    """The driver's trainer client over the local backend."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def logprobs(self, batch: Batch) -> Tensor:
        return self._policy.backend.forward(batch, frozenset({"logprobs"}))["logprobs"]


class LocalWeights:
    """Refits the engine with the trainer's weights."""

    def __init__(self, policy: Policy, generator: SteppedGenerator) -> None:
        self._policy = policy
        self._generator = generator

    async def publish_and_digest(self, version: int) -> str:
        tensors = [(name, tensor.clone()) for name, tensor in self._policy.backend.snapshot()]
        async with self._generator.paused(InFlightPolicy.DRAIN):
            await self._generator.refit(tensors, version)
        digest = xxhash.xxh3_128()
        for _, tensor in tensors:
            digest.update(tensor.numpy().tobytes())
        return str(digest.hexdigest())


class Noted(SamplePreviews):
    """Keeps all samples of each round."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(TokenSplitter(lambda: partial(decode_ids, tokenizer)), SEED)
        self.answers: list[Sequence[ValidationSample]] = []

    def from_responses(
        self, samples: Sequence[ValidationSample], step: int, version: int, purpose: str = "validation"
    ) -> list[dict[str, Any]]:
        self.answers.append(samples)
        return super().from_responses(samples, step, version, purpose)


class RoundsJob:
    """One attempt of the job under one fence. `figures`: metrics of each step. `answers`: samples of each
    sampled round."""

    def __init__(
        self, source: RoundSource, policy: Policy, job: AlignmentJob, state: JobState, noted: Noted
    ) -> None:
        self.answers = noted.answers
        self.state = state
        self.figures: list[dict[str, float]] = []
        self._source = source
        self._policy = policy
        self._objective = make_algorithm(job.spec.algorithm).policy_objective()

    async def learn(self, steps: int = ENDLESS, rounds: int = ENDLESS) -> list[dict[str, float]]:
        """Run steps until the rounds end, `steps` steps are done, or `rounds` rounds have begun. Return the
        metrics of all steps so far."""
        while self.state.step < steps and self.state.round.number < rounds:
            step = StepRecord(self.state.step + 1)
            batch = await self._source.next_batch(self.state, step)
            if batch is None:
                break
            plan = UpdatePlan(1, len(batch), self.state.step)
            step.add(self._policy.backend.train_step(batch, self._objective, plan))
            self.state = self._source.state_after(self.state)
            self.figures.append(step.metrics)
        return self.figures

    def begun(self) -> list[dict[str, float]]:
        """Return the metrics of the first step of each round, whose samples are from the weights before the
        step."""
        return [figures for figures in self.figures if "seconds/generate" in figures]


@asynccontextmanager
async def rounds_job(
    run_dir: Path,
    policy: Policy,
    rows: Sequence[PreparedRow],
    algorithm: dict[str, Any],
    kind: str,
    *,
    max_tokens: int,
    reward: Reward | None = None,
    state: JobState | None = None,
    fence: int = 1,
    context: int | None = None,
    max_sequences: int = MAX_SEQUENCES,
    bus: MemoryBus | None = None,
    mixture: dict[str, int] | None = None,
) -> AsyncIterator[RoundsJob]:
    """Run the job with its worker and its scorer. algorithm: as in a spec. run_dir: may contain the files of
    an earlier attempt, which the job continues with. max_sequences: samples that the worker holds. bus:
    None: a new one with the job's bounds. mixture: rows of each source, of equal weights; None: the rows are
    one source's."""
    document = _document(algorithm, kind, 1.0)
    if mixture is not None:
        entries = [{"name": name, "source": {"path": f"/{name}"}} for name in mixture]
        document["spec"]["data"] = {kind: {"mixture": entries}}
    document["spec"]["rollout"] = {
        "sampling": {"maxTokens": max_tokens},
        "engine": {"torch": {"maxSequences": max_sequences}},
    }
    if reward is not None:
        document["spec"]["rewards"] = [{"name": "task", "function": {"module": "task:reward"}}]
    job = AlignmentJob.model_validate(document)
    bus, stop = bus or MemoryBus(bounds=bus_bounds(job)), asyncio.Event()
    generator = SteppedGenerator(policy._engine, _compute)
    worker = RolloutWorker(
        "rollout-0", _Noting(bus.new_connection(), policy.asked), generator, AnyVersion(), max_sequences
    )

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        scores = []
        for rollout in rollouts:
            scores.append(empty_score(rollout, "task", "reward-0"))
            prompt = policy.tokenizer.decode(_prompt(rollout), skip_special_tokens=True)
            assert reward is not None
            scores[-1].reward = reward(prompt.replace(" ", ""), rollout.response)
        return scores

    running = [asyncio.create_task(generator.run()), asyncio.create_task(worker.run())]
    if reward is not None:
        scorer = ScoreWorker(bus.new_connection(), "reward-task", frozenset({"train"}), score)
        running.append(asyncio.create_task(scorer.run()))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, running)
        exchange = await stack.enter_async_context(RolloutCollector(bus, fence, stop, lambda text: None))
        prepared = PreparedJob(
            run_dir,
            {"policy": policy.folder},
            report(len(rows), context, kind, response=1, sources=mixture),
            rows,
            None,  # type: ignore[arg-type]
        )
        noted = Noted(policy.tokenizer)
        context = JobContext(
            job=job,
            prepared=prepared,
            run_dir=run_dir,
            stop=stop,
            collector=exchange,
            trainer=LocalTrainer(policy),  # type: ignore[arg-type]
            critic=None,
            history=None,  # type: ignore[arg-type]
            previews=noted,
            max_payload=8 << 20,
        )
        source = build_round_source(
            context,
            LocalWeights(policy, generator),  # type: ignore[arg-type]
            make_algorithm(job.spec.algorithm),
        )
        yield RoundsJob(source, policy, job, state or JobState(), noted)


class _Noting:
    """A bus that records the purpose and group of each pulled work item."""

    def __init__(self, bus: MemoryBus, asked: list[str]) -> None:
        self._bus = bus
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def pull(self, *args: Any) -> Any:
        deliveries = await self._bus.pull(*args)
        for delivery in deliveries:
            item = rollout_pb2.WorkItem.FromString(delivery.data)
            self._asked.append(f"{item.purpose}:{item.group_id}")
        return deliveries


def _prompt(rollout: rollout_pb2.Rollout) -> list[int]:
    sequence = decode(rollout.sequence)
    return sequence.tokens[sequence.token("loss_mask") == 0].tolist()  # type: ignore[no-any-return]


async def _compute(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
