"""Measure a job's parts: `python -m kubealign_services.roles.calibration.main JOB.json FOLDER FIGURES.json
...`.

One process does in sequence the work that the services do in parallel, each with all cores: this models a
trainer and a worker that have a machine like this one each.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kubealign.bench.measurements import SizingMeasurements, StepShape
from kubealign.bench.response_lengths import ResponseLengths
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import ReferencePlacement
from kubealign.spec.sections.training import Trainer
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.calibration.decoding import (
    DecodingTiming,
    measure_decoding,
    min_response_tokens,
)
from kubealign_services.roles.calibration.synthetic_batch import spread_groups, synthetic_batch
from kubealign_services.roles.calibration.time_budget import TimeBudget
from kubealign_services.roles.calibration.training_step import MeasuredModel, StepTiming, measure_step
from kubealign_services.roles.calibration.weight_sync import measure_weight_sync
from kubealign_services.training.backends import create_backend
from kubealign_services.training.contract import Head, TrainingBackend

#: Shares of the time budget for the engine and for the weight sync; the trainer gets the rest.
_ENGINE_SHARE, _WEIGHT_SYNC_SHARE = 0.4, 0.1
#: Largest number of prompts that are used.
_MAX_PROMPTS = 64
NOT_MEASURED = 1


def measure(
    job: AlignmentJob, folder: Path, mean: float | None, seconds: float, threads: int
) -> SizingMeasurements:
    """Return the measurements that `kubealign bench` needs for a job whose steps sample, prepared in the
    folder.

    Uses the torch engine on one rank and the torch backend. Raises DataError, ValueError.

    Args:
        mean: Mean length of a response; None: a quarter of the longest.
    """
    shape = StepShape.from_job(job)
    torch.set_num_threads(threads)
    prepared = prepare(job, folder, {})
    longest = job.spec.rollout.sampling.max_tokens
    assumed = [] if mean is not None else [f"responses of {max(1.0, longest / 4):g} tokens, as a mean"]
    lengths = ResponseLengths(mean or max(1.0, longest / 4), longest)
    prompts = [row.prompt_tokens for row in prepared.train[:_MAX_PROMPTS]]
    policy = _load_model(job, prepared, "policy")
    rollout = job.spec.effective_rollout
    engine_spec = rollout.engine.torch if rollout is not None else None
    assert engine_spec is not None
    engine = TorchRolloutEngine.create(prepared.model_folder("policy"), engine_spec)
    handover = asyncio.run(
        measure_weight_sync(policy.backend, engine, TimeBudget(_WEIGHT_SYNC_SHARE * seconds))
    )
    decoding = _measure_decoding(
        job, engine, prompts, lengths, shape, TimeBudget(_ENGINE_SHARE * seconds), prepared
    )
    del engine
    trained = _measure_steps(
        job,
        prepared,
        policy,
        prompts,
        lengths,
        shape,
        TimeBudget((1 - _ENGINE_SHARE - _WEIGHT_SYNC_SHARE) * seconds),
    )
    assumed += trained.assumptions
    # A reference costs what the policy's own log-probabilities cost.
    reference = job.spec.effective_reference
    scored_by_trainer = reference is not None and reference.placement is not ReferencePlacement.OWN
    before = trained.values + trained.logprobs * (2 if scored_by_trainer else 1)
    if job.spec.trainer.ranks > 1:
        assumed.append(f"{job.spec.trainer.ranks} ranks of the trainer, as many times as fast as one")
    if job.spec.algorithm.value.reference_sample:
        assumed.append("samples of the reference in the same passes as the policy's")
    return SizingMeasurements(
        source=f"measured here, with {threads} threads each",
        passes=decoding.passes,
        prompt_tokens_per_second=decoding.prompt_tokens_per_second,
        prompt_tokens=sum(map(len, prompts)) / len(prompts),
        mean_length=lengths.mean,
        longest_length=longest,
        length_spread=lengths.spread,
        train_seconds=trained.train / job.spec.trainer.ranks,
        before_seconds=before / job.spec.trainer.ranks,
        scoring_seconds=trained.logprobs if reference is not None and not scored_by_trainer else 0.0,
        refit_seconds=handover.seconds,
        refit_bytes=handover.size_bytes,
        assumed=[*assumed, "rewards cost nothing"],
    )


def _measure_decoding(
    job: AlignmentJob,
    engine: TorchRolloutEngine,
    prompts: list[list[int]],
    lengths: ResponseLengths,
    shape: StepShape,
    budget: TimeBudget,
    prepared: PreparedJob,
) -> DecodingTiming:
    sampling = job.spec.rollout.sampling
    most = min(shape.max_sequences, shape.sequences * (shape.staleness + 1))
    context = prepared.report.context
    # In the middle of its response a sequence is as long as its prompt and half of the response.
    partial = [[*prompt, *(prompt[-1:] * round(lengths.mean / 2))] for prompt in prompts]
    prefill = job.spec.rollout.engine.torch.prefill_tokens if job.spec.rollout.engine.torch else 1
    tokens = min_response_tokens(most, max(map(len, partial)), prefill)
    if context is not None:
        partial = [prompt[: max(1, context - tokens)] for prompt in partial]
    parameters = SamplingParameters(
        max_tokens=tokens,
        min_tokens=tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
    )
    return measure_decoding(engine, partial, parameters, most, budget)


def _measure_steps(
    job: AlignmentJob,
    prepared: PreparedJob,
    policy: MeasuredModel,
    prompts: list[list[int]],
    lengths: ResponseLengths,
    shape: StepShape,
    budget: TimeBudget,
) -> StepTiming:
    vocabulary, step_lengths = len(prepared.tokenizer), lengths.quantiles(shape.sequences)
    critic = None if job.spec.effective_critic is None else _load_model(job, prepared, "critic")

    def make(groups: int) -> Batch:
        part = spread_groups(step_lengths, shape.samples, groups)
        return synthetic_batch(prompts, part, shape.samples, vocabulary, job)

    return measure_step(policy, critic, make_algorithm(job.spec.algorithm), make, shape.prompts, budget)


def _load_model(job: AlignmentJob, prepared: PreparedJob, role: str) -> MeasuredModel:
    """Load the policy or the critic as its own process does, on one rank."""
    algorithm, entry = make_algorithm(job.spec.algorithm), job.spec.algorithm.value
    critic = job.spec.effective_critic if role == "critic" else None
    trainer: Trainer = critic or job.spec.effective_trainer
    backend: TrainingBackend = create_backend(
        prepared.model_folder(role),
        Head.LANGUAGE_MODEL if critic is None else Head.VALUE,
        _on_one_rank(trainer),
        total_updates=prepared.total_steps(job.spec) * entry.updates_per_step,
        seed=job.spec.seed,
    )
    objective = algorithm.policy_objective() if critic is None else algorithm.value_objective()
    assert objective is not None
    return MeasuredModel(
        backend, objective, getattr(entry, "epochs_per_step", 1), getattr(entry, "minibatch_sequences", None)
    )


def _on_one_rank(trainer: Trainer) -> Trainer:
    """Return the trainer's settings for one rank, which shares its tokens with no other."""
    backend = trainer.backend
    if backend.torch is not None:
        alone = backend.torch.model_copy(update={"context_parallel": 1})
        backend = backend.model_copy(update={"torch": alone})
    return trainer.model_copy(update={"ranks": 1, "backend": backend})


def main(argv: Sequence[str]) -> int:
    """Measure and write the result.

    Return the exit code; the last line of stderr is a cause that the user can fix.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--mean-tokens", type=float)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(argv[1:])
    logging.basicConfig(level=logging.WARNING)
    job = AlignmentJob.model_validate_json(options.job.read_text())
    try:
        measurements = measure(job, options.folder, options.mean_tokens, options.seconds, options.threads)
    except (DataError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return NOT_MEASURED
    options.figures.write_text(measurements.model_dump_json(indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
