"""The loop: prompts out, rollouts and scores in, one TrainStep, new weights. Everything else is behind
these names."""

import asyncio

from kubealign_services.batch.companions import without_companions
from kubealign_services.driver.run import Run
from kubealign_services.driver.state import JobState


async def align(run: Run, state: JobState) -> JobState:
    """Take the job from `state` to its end; return the last state, committed, its result exported.

    The same loop serves every algorithm: what one has no use for (a critic, a reference, rollouts) does
    nothing here. Raises JobFailed, Stopping (`run.state` is then the last whole step), or what a lost role
    raises.
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
                run.critic.values(batch, step),  # only where the algorithm has a critic
                run.trainer.old_logprobs(batch, step),  # only where more than one update, or KL, needs them
            )
            run.gate.check(batch, step)
            step.add(run.algorithm.advantages(batch, state.algorithm))
            batch = without_companions(batch)  # what informed the advantages and is not learned
            run.previews.take(batch, step)  # a few samples, with what is known of their tokens
            await run.weights.released(step)  # on policy a refit that lost its quorum surfaces here
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
