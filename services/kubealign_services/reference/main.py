"""The reference: `python -m kubealign_services.reference.main SETTINGS.json`."""

import sys

from kubealign_services.data.prepared import load_prepared
from kubealign_services.process.context import Context
from kubealign_services.process.run import run
from kubealign_services.process.until_stopped import until_stopped
from kubealign_services.reference.core import SOURCE, ReferenceScorer
from kubealign_services.reference.servicer import ReferenceServicer
from kubealign_services.scoring.worker import ScoreWorker
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen import FrozenModel


async def serve(context: Context) -> None:
    """Score until stopped."""
    spec = context.job.spec
    backend = spec.trainer.backend.value
    folder = load_prepared(context.settings.run_dir).model("reference")
    model = await context.compute(
        FrozenModel.load, folder, Head.LANGUAGE_MODEL, backend.precision, backend.microbatch_tokens
    )
    rollout = spec.effective_rollout
    temperature = (rollout.sampling.temperature if rollout else 1.0) or 1.0
    scorer = ReferenceScorer(context.settings.name, context, model, temperature)
    async with context.bus() as bus, context.serve([ReferenceServicer(context, scorer)]):
        worker = ScoreWorker(bus, SOURCE, frozenset({"train"}), scorer)
        context.heartbeat.describe(worker.said)
        await until_stopped(context.stop, worker.run())


def main(argv: list[str]) -> int:
    return run(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
