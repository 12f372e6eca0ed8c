"""Teacher process: `python -m kubealign_services.roles.teacher.main SETTINGS.json`."""

import sys

from kubealign_services.data.prepared import load_prepared
from kubealign_services.roles.teacher.scorer import SOURCE, TeacherScorer
from kubealign_services.roles.teacher.servicer import TeacherServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.serving import serve_scorer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel


async def serve(context: ProcessContext) -> None:
    """Serve candidates until stopped."""
    spec = context.job.spec
    algorithm, backend = spec.algorithm.value, spec.trainer.backend.value
    prepared = load_prepared(context.settings.run_dir)
    model = await context.compute(
        FrozenTorchModel.load,
        prepared.model_folder("teacher"),
        Head.LANGUAGE_MODEL,
        backend.precision,
        backend.microbatch_tokens,
    )
    scorer = TeacherScorer(
        context.settings.name,
        context,
        model,
        algorithm.candidates,
        algorithm.temperature,
        len(prepared.tokenizer),
    )
    await serve_scorer(context, SOURCE, frozenset({"train"}), scorer, TeacherServicer(context, scorer))


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
