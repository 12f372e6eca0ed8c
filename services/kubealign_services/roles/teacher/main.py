"""Teacher process: `python -m kubealign_services.roles.teacher.main SETTINGS.json`."""

import sys

from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.roles.teacher.scorer import TeacherScorer
from kubealign_services.roles.teacher.servicer import TeacherServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.frozen_scorer import serve_frozen_scorer


async def serve(context: ProcessContext) -> None:
    """Serve candidates until stopped."""
    spec = context.job.spec
    prepared = load_prepared(context.settings.run_dir)
    vocabulary = len(prepared.tokenizer)
    distribution = spec.algorithm.value.teacher_distribution
    teacher_prompts = None if spec.hint is None else TeacherPrompts(prepared.train)
    await serve_frozen_scorer(
        context,
        prepared.model_folder(TeacherScorer.source),
        lambda model: TeacherScorer(context, model, distribution, vocabulary, teacher_prompts),
        TeacherServicer,
    )


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
