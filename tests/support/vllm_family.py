"""Program for vLLM's environment: one engine reads an exported model, is refitted, and merges an adapter.

vLLM's process imports the main module of its parent again, and must not import numba, so there is none:
`python -c "from support.vllm_family import main; main()" REQUEST`, a JSON file with the fields of `Request`.
"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vllm.lora.request
from safetensors.torch import load_file
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from kubealign.spec.sections.engines import VllmEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.external.factory import read_model_info
from kubealign_services.generation.external.generator import ExternalGenerator, GeneratorOptions
from kubealign_services.generation.external.vllm.engine import VllmExternalEngine
from kubealign_services.generation.external.vllm.parameters import engine_arguments, library_variables
from kubealign_services.generation.external.weight_files import WeightFiles

SPEC = VllmEngineSpec(precision=Precision.FLOAT32, cache_gib=0.25, max_sequences=8)
SAMPLING = SamplingParameters(max_tokens=24, min_tokens=24)


@dataclass(frozen=True)
class Request:
    """exported: folder of the model that vLLM reads itself. refit: safetensors file of other weights.
    adapter: safetensors file of an adapter to them. scale: alpha / rank. prompts: token ids. memory: an empty
    folder. answer: file to write.
    """

    exported: str
    refit: str
    adapter: str
    scale: float
    prompts: list[list[int]]
    memory: str
    answer: str


async def sampled(generator: ExternalGenerator, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Return a sampled response to each prompt, and the log-probabilities of the whole sequence."""
    answers = []
    for i, prompt in enumerate(prompts):
        request = GenerationRequest(str(i), tuple(prompt), (i,), SAMPLING)
        [sample] = [each async for each in generator.generate(request)]
        logprobs = await generator.sequence_logprobs(prompt + sample.tokens)
        answers.append({"tokens": sample.tokens, "drawn": sample.engine_logprobs, "whole": logprobs})
    return answers


async def sampled_as_read(engine: VllmExternalEngine, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Return the same of the weights that vLLM has read itself, which the generator does not count as any."""
    answers = []
    # Without an end no token is forbidden, which the log-probabilities would be of.
    sampling = SamplingParameters(max_tokens=SAMPLING.max_tokens)
    for i, prompt in enumerate(prompts):
        sample = await engine.generate(f"read {i}", prompt, sampling, i, [])
        logprobs = await engine.score(f"score {i}", prompt + sample.tokens)
        answers.append({"tokens": sample.tokens, "drawn": sample.logprobs, "whole": logprobs})
    return answers


async def answer(request: Request) -> dict[str, Any]:
    model = read_model_info(Path(request.exported))
    os.environ.update(library_variables(SPEC, on_cpu=True) | os.environ)
    arguments = engine_arguments(Path(request.exported), SPEC, model.context, on_cpu=True)
    # vLLM's own loader reads the folder.
    core = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments | {"load_format": "auto"}))
    engine = VllmExternalEngine(core, vllm, on_cpu=True)
    try:
        files, options = WeightFiles(Path(request.memory)), GeneratorOptions(8, trains_adapter=True)
        generator = ExternalGenerator(engine, model, files, options)
        result = {"exported": await sampled_as_read(engine, request.prompts)}
        await generator.refit(load_file(request.refit).items(), 1)
        result["refitted"] = await sampled(generator, request.prompts)
        await generator.adapt(load_file(request.adapter).items(), request.scale, 2)
        result["adapted"] = await sampled(generator, request.prompts)
        return result
    finally:
        await engine.close()


def main() -> None:
    asked = Request(**json.loads(Path(sys.argv[1]).read_text()))
    Path(asked.answer).write_text(json.dumps(asyncio.run(answer(asked))))
