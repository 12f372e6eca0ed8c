"""Program that generates as a rollout worker with TensorRT-LLM does, for a model folder with weights.

It prints the tokens and the log-probabilities (of the full distribution) of a drawn response as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import kubealign_services.roles.rollout.main  # noqa: F401 - the imports of the process itself
from kubealign.spec.sections.engines import TensorRTLLMEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.data.models import checkpoint_layout
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.external.factory import open_external_engine
from kubealign_services.roles.rollout.weights import read_folder_weights
from support import fake_tensorrt_llm

_SECONDS = 100.0


async def main(folder: Path) -> None:
    spec = TensorRTLLMEngineSpec(precision=Precision.FLOAT32, max_sequences=4)
    request = GenerationRequest("drawn", (70, 71, 72), (1,), SamplingParameters(8, 8, temperature=1.0))
    with TemporaryDirectory() as files:
        async with (
            asyncio.timeout(_SECONDS),
            open_external_engine(spec, folder, Path(files), None, lambda load: None) as generator,
        ):
            running = asyncio.create_task(generator.run())
            async with generator.paused(InFlightPolicy.DRAIN):
                await generator.refit(read_folder_weights(folder), 1)
            [sample] = [sample async for sample in generator.generate(request)]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    print(json.dumps({"tokens": list(sample.tokens), "logprobs": list(sample.engine_logprobs)}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(fake_tensorrt_llm.__file__).parent))
    # The environment's version: its models have the layout of their checkpoints.
    checkpoint_layout.TRANSFORMERS_MAJOR = 4
    asyncio.run(main(Path(sys.argv[1])))
