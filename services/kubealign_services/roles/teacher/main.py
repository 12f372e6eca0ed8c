"""Teacher process: `python -m kubealign_services.roles.teacher.main SETTINGS.json`."""

import sys

from kubealign.role_specs import teacher_group
from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.prompt_sources import find_teacher_sources
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.roles.teacher.scorer import TeacherLogprobScorer, TeacherScorer
from kubealign_services.roles.teacher.servicer import TeacherServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.frozen_scorer import FrozenScorer, serve_frozen_scorer
from kubealign_services.scoring.logprob_scorer import LogprobServicer
from kubealign_services.training.contract import ScoringBackend


async def serve(context: ProcessContext) -> None:
    """Score until stopped: candidates, or without a distribution the log-probabilities of the sampled tokens.

    One of several teachers scores the responses to the prompts of its own sources.
    """
    spec, name = context.job.spec, context.settings.teacher
    prepared = load_prepared(context.settings.run_dir)
    vocabulary = len(prepared.tokenizer)
    distribution = spec.algorithm.value.teacher_distribution
    teacher_prompts = None if spec.hint is None else TeacherPrompts(prepared.train)

    def create_scorer(model: ScoringBackend) -> FrozenScorer:
        if distribution is None:
            # For rollouts of an earlier version, which state no temperature.
            default_temperature = spec.rollout.sampling.temperature
            return TeacherLogprobScorer(context, model, default_temperature, teacher_prompts)
        return TeacherScorer(context, model, distribution, vocabulary, teacher_prompts)

    await serve_frozen_scorer(
        context,
        teacher_group(name),
        create_scorer,
        LogprobServicer if distribution is None else TeacherServicer,
        prepared,
        None if name is None else find_teacher_sources(spec, prepared.report.train, name),
    )


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
