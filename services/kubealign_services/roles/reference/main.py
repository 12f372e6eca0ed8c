"""Reference process: `python -m kubealign_services.roles.reference.main SETTINGS.json`."""

import sys

from kubealign_services.data.prepared import load_prepared
from kubealign_services.roles.reference.scorer import SOURCE, ReferenceScorer
from kubealign_services.roles.reference.servicer import ReferenceServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.serving import serve_scorer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel


async def serve(context: ProcessContext) -> None:
    """Score until stopped."""
    spec = context.job.spec
    backend = spec.trainer.backend.value
    folder = load_prepared(context.settings.run_dir).model_folder("reference")
    model = await context.compute(
        FrozenTorchModel.load, folder, Head.LANGUAGE_MODEL, backend.precision, backend.microbatch_tokens
    )
    # Given rows were not sampled, so the temperature of validation sampling does not apply to them.
    temperature = spec.rollout.sampling.temperature if spec.algorithm.value.online else 1.0
    scorer = ReferenceScorer(context.settings.name, context, model, temperature)
    await serve_scorer(context, SOURCE, frozenset({"train"}), scorer, ReferenceServicer(context, scorer))


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
