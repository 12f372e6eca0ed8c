"""The training loop: prompts out, rollouts and scores in, one TrainStep, new weights."""

from kubealign_services.algorithms.advantages.samples import add_advantages
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.roles.driver.concurrency import run_calls
from kubealign_services.roles.driver.metrics.batch_metrics import objective_metrics
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.training_run import TrainingRun


async def run_training_loop(run: TrainingRun, state: JobState) -> JobState:
    """Run the job from `state` to its end.

    Return the last state, with its checkpoint saved and its result exported.

    The same loop serves every algorithm: a part that an algorithm does not use (critic, reference,
    rollouts) does nothing.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop; `run.state` is then the last complete step.
        Unreachable, OutOfOrder, BusUnavailable: The connection to a role or to the message bus was lost.
    """
    await run.weight_sync.publish(state.version)
    await run.save_missed_checkpoint(state)
    await run.validation.measure_at_start(state)
    while not state.finished and state.step < run.max_steps:
        with run.report.measure_step(state.step + 1) as step:
            batch = await run.source.next_batch(state, step)  # publishes prompts, joins rollouts with scores
            if batch is None:
                state.finished = state.finished or "the data ran out"
                break
            run.validation.report_time(step)
            await run_calls(
                run.critic_values.add_to(batch, step),  # only if the algorithm has a critic
                run.old_logprobs.add_to(batch, step),  # only if a KL penalty or several updates need them
                parallel=run.overlap.parallel_scoring,
            )
            run.logprob_gap_gate.check(batch, step)
            step.add(add_advantages(run.algorithm, batch, state.algorithm))
            batch = drop_auxiliary(batch)  # these sequences only inform the advantages
            run.previews.add_previews(batch, step)  # a few samples with per-token values, for displays
            # On policy, a refit that lost its quorum fails here.
            await run.weight_sync.wait_until_snapshot_taken(step)
            state = await run.train_step(batch, run.source.state_after(state), step)  # publishes new weights
            run.logprob_gap_gate.check(batch, step)
            step.add(objective_metrics(step.metrics))
        await run.validation.measure_due(state)
        if run.is_checkpoint_due(state.step) or await run.checkpoints.is_among_best(state):
            await run.save_checkpoint(state)
    await run.validation.measure_at_end(state)
    await run.save_checkpoint(state)
    await run.result_exporter.export(state)
    return state
