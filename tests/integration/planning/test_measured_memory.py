"""Planned memory is within a tenth of the memory of real backends and engines on a CPU.

Each case is a separate process that works on a model of 32 million weights. The kernel's high-water mark,
minus the resident memory after the same work on a tiny model, is compared with the plan minus its process.
Glibc is configured to return every large block at once, since the plan does not include freed blocks on the
heap.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kubealign.planning.job_plan import plan_job
from kubealign.planning.machine import PROCESS_BYTES, Device, Machine
from kubealign.planning.model.shape_sources import ModelShapes
from kubealign.spec.loading.loader import load_jobs
from support.measured_memory import PROMPT, RESPONSE

pytestmark = pytest.mark.timeout(290)

VOCABULARY = 8192
TESTS = Path(__file__).parents[2]
JOBS = {
    "sft": """
  algorithm: {sft: {rowsPerStep: 8}}
  data: {demonstrations: {source: {path: rows.jsonl}, maxTokens: 32}}
  trainer: {backend: {torch: {microbatchTokens: 1024}}}
""",
    "qlora": """
  algorithm: {sft: {rowsPerStep: 8}}
  data: {demonstrations: {source: {path: rows.jsonl}, maxTokens: 32}}
  trainer: {backend: {torch: {microbatchTokens: 1024}}, lora: {rank: 8, quantization: {nf4: {}}}}
""",
    "sft-8-bit": """
  algorithm: {sft: {rowsPerStep: 8}}
  data: {demonstrations: {source: {path: rows.jsonl}, maxTokens: 32}}
  trainer: {backend: {torch: {microbatchTokens: 1024}}, optimizer: {adamW: {states: Blockwise8Bit}}}
""",
    "sft-host": """
  algorithm: {sft: {rowsPerStep: 8}}
  data: {demonstrations: {source: {path: rows.jsonl}, maxTokens: 32}}
  trainer: {backend: {torch: {microbatchTokens: 1024}}, optimizer: {muon: {}, device: Host}}
""",
    "context": """
  algorithm: {sft: {rowsPerStep: 8}}
  data: {demonstrations: {source: {path: rows.jsonl}, maxTokens: 32}}
  trainer: {ranks: 2, backend: {torch: {microbatchTokens: 512, contextParallel: 2}}}
""",
    "ppo": """
  algorithm: {ppo: {promptsPerStep: 16}}
  data: {prompts: {source: {path: rows.jsonl}, maxTokens: 32}}
  rewards: [{name: long, function: {module: "math:sin"}}]
  critic: {model: {path: small}, backend: {torch: {microbatchTokens: 1024}}}
  trainer: {ranks: 2, backend: {torch: {microbatchTokens: 1024, gradientCheckpointing: true}}}
  rollout: {sampling: {maxTokens: 224}, engine: {torch: {maxSequences: 64, prefillTokens: 512}}}
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8}
    _model(root / "small", num_attention_heads=8, num_key_value_heads=4, **sizes)
    _model(root / "tiny", hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
    for name, spec in JOBS.items():
        (root / f"{name}.yaml").write_text(
            f"apiVersion: kubealign.dev/v1alpha1\nkind: AlignmentJob\nmetadata: {{name: {name}}}\n"
            f"spec:\n  maxSteps: 2\n  policy: {{model: {{path: small}}}}{spec}"
        )
    return root


def _model(folder: Path, **sizes: Any) -> None:
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"<{i}>" for i in range(VOCABULARY - 2 - len(words))]
    backend_tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend_tokenizer.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend_tokenizer, eos_token="<end>", pad_token="<pad>"
    )
    ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=512, **ids, **sizes))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measured(folder: Path, job: str, part: str, ranks: int) -> list[dict[str, int]]:
    """Return the bytes before the work and at the peak, by rank."""
    words = [sys.executable, "-m", "support.measured_memory"]
    words += [str(folder / f"{job}.yaml"), part, str(folder / "tiny")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    group = [[str(rank), str(folder / f"meeting-{job}")] for rank in range(ranks)] if ranks > 1 else [[]]
    started = [
        subprocess.Popen([*words, *rest], env=environment, stdout=subprocess.PIPE, text=True)
        for rest in group
    ]
    try:
        return [json.loads(process.communicate(timeout=280)[0].splitlines()[-1]) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("job", "part", "ranks"),
    [
        ("ppo", "trainer", 2),
        pytest.param("sft", "trainer", 1, marks=pytest.mark.full),
        pytest.param("qlora", "trainer", 1, marks=pytest.mark.full),
        pytest.param("sft-8-bit", "trainer", 1, marks=pytest.mark.full),
        pytest.param("sft-host", "trainer", 1, marks=pytest.mark.full),
        pytest.param("context", "trainer", 2, marks=pytest.mark.full),
        pytest.param("ppo", "critic", 1, marks=pytest.mark.full),
        pytest.param("ppo", "rollout", 1, marks=pytest.mark.full),
    ],
)
def test_the_plan_is_within_a_tenth(folder: Path, job: str, part: str, ranks: int) -> None:
    (loaded,) = load_jobs(folder / f"{job}.yaml")
    plan = plan_job(loaded, ModelShapes({}, [loaded]), Machine(device=Device.CPU), PROMPT, RESPONSE)
    need = next(each for each in plan.requirements if each.group == part)
    expected = need.peak.total - need.peak.parts["process"]
    for each in measured(folder, job, part, ranks):
        took = each["most"] - each["before"]
        mebibytes = [size >> 20 for size in (expected, took, each["before"])]
        print(f"{job} {part}: planned {mebibytes[0]} MiB, measured {mebibytes[1]}, process {mebibytes[2]}")
        assert took == pytest.approx(expected, rel=0.1)
        assert each["before"] == pytest.approx(PROCESS_BYTES, rel=0.25)
