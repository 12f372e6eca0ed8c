"""The canary of a pretrained model: the rounding of bf16 passes, a layer whose weights are in the wrong place
does not.
"""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from kubealign.spec.sections.precision import Precision
from kubealign_services.weights.verify.canary import Canary, canary_length, mean_logprob_gap
from support.smollm2 import FILE, needs_smollm2

VOCABULARY, CONTEXT = 49_152, 8192


@torch.no_grad()
def logprobs(model: LlamaForCausalLM, tokens: list[int]) -> list[float]:
    ids = torch.tensor([tokens])
    table = model(ids).logits[0, :-1].float().log_softmax(-1)
    values: list[float] = table.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return values


@needs_smollm2
@pytest.mark.timeout(240)
def test_rounding_passes_and_exchanged_weights_do_not() -> None:
    exact: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32
    )
    rounded = copy.deepcopy(exact).to(torch.bfloat16)
    exchanged = copy.deepcopy(rounded)
    attention = exchanged.model.layers[5].self_attn
    attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj
    for seed in range(4):
        canary = Canary.choose(seed, VOCABULARY, [Precision.BFLOAT16], canary_length(CONTEXT))
        with torch.autocast("cpu", torch.bfloat16):
            sent = logprobs(exact, canary.tokens)
        gaps = [mean_logprob_gap(sent, logprobs(model, canary.tokens)) for model in (rounded, exchanged)]
        assert gaps[0] < 0.75 * canary.tolerance, (seed, gaps)
        assert gaps[1] > 2 * canary.tolerance, (seed, gaps)
