"""The training loop: prompts out, rollouts and scores in, one TrainStep, new weights."""

import asyncio

from kubealign_services.batch.companions import without_companions
from kubealign_services.driver.run import Run
from kubealign_services.driver.state import JobState


async def align(run: Run, state: JobState) -> JobState:
    """Run the job from `state` to its end. Return the last state, with its checkpoint saved and its result
    exported.

    The same loop serves every algorithm: a part that an algorithm does not use (critic, reference,
    rollouts) does nothing.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop; `run.state` is then the last complete step.
        Unreachable, OutOfOrder, BusUnavailable: The connection to a role or to the message bus was lost.
    """
    await run.weights.publish(state.version)
    await run.validation.at_start(state)
    while not state.finished and state.step < run.max_steps:
        with run.report.step(state.step + 1) as step:
            batch = await run.source.take(state, step)  # publishes prompts, joins rollouts with scores
            if batch is None:
                state.finished = state.finished or "the data ran out"
                break
            await asyncio.gather(
                run.critic.values(batch, step),  # only if the algorithm has a critic
                run.trainer.old_logprobs(batch, step),  # only if a KL penalty or several updates need them
            )
            run.gate.check(batch, step)
            step.add(run.algorithm.advantages(batch, state.algorithm))
            batch = without_companions(batch)  # drop auxiliary sequences, which only inform the advantages
            run.previews.take(batch, step)  # a few samples with per-token values, for displays
            await run.weights.released(step)  # on policy, a refit that lost its quorum fails here
            state = await run.step_both(batch, run.source.after(state), step)
            run.gate.check(batch, step)
            await run.weights.publish_soon(state.version, step)
        if run.validation.due(state.step):
            await run.validation.measure(state)
        if run.commits_at(state.step):
            await run.commit(state)
    await run.validation.at_end(state)
    await run.commit(state)
    await run.results.export(state)
    return state
