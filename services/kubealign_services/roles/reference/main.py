"""Reference process: `python -m kubealign_services.roles.reference.main SETTINGS.json`."""

import sys

from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.roles.reference.scorer import ReferenceScorer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.frozen_scorer import serve_frozen_scorer
from kubealign_services.scoring.logprob_scorer import LogprobServicer


async def serve(context: ProcessContext) -> None:
    """Score until stopped."""
    spec = context.job.spec
    # For rollouts of an earlier version, which state no temperature. Given rows were not sampled, so the
    # temperature of validation sampling does not apply to them.
    default_temperature = spec.rollout.sampling.temperature if spec.algorithm.value.online else 1.0
    prepared = load_prepared(context.settings.run_dir)
    teacher_prompts = None if spec.hint is None else TeacherPrompts(prepared.train)
    await serve_frozen_scorer(
        context,
        ReferenceScorer.source,
        lambda model: ReferenceScorer(context, model, default_temperature, teacher_prompts),
        LogprobServicer,
        prepared,
    )


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
