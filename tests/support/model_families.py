"""Tiny random models of the supported families, which transformers, the torch engine and vLLM can all run."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from support.engine_contract.tiny_model import CONTEXT, END_TOKEN, VOCABULARY, write_tokenizer

#: Tokens of a window in the families that have one: shorter than the tests' sequences.
WINDOW = 8
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    # Heads of 32 dimensions, the least that vLLM has on a CPU.
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": END_TOKEN,
    "pad_token_id": 257,
}
_WINDOWED: dict[str, Any] = {
    "head_dim": 32,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}


@dataclass(frozen=True)
class ModelFamily:
    """A family of published models.

    models: their names. model_type: of config.json. fields: of the tiny config, besides the common sizes, of
    which it has those that its type knows. remark: traits that other families do not have.
    """

    models: str
    model_type: str
    fields: dict[str, Any]
    remark: str = ""

    def sizes(self) -> dict[str, Any]:
        """Return the fields of the tiny config."""
        kind = CONFIG_MAPPING[self.model_type]
        names = {field.name for field in dataclasses.fields(kind)} | set(kind.attribute_map)
        return {name: size for name, size in (_SIZES | self.fields).items() if name in names}

    def config(self) -> PreTrainedConfig:
        return AutoConfig.for_model(self.model_type, **self.sizes())

    @property
    def class_name(self) -> str:
        """Name of transformers' class."""
        return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.model_type]

    def save(self, folder: Path, seed: int = 7) -> Path:
        """Write a model with random float32 weights, norms included, and a tokenizer of bytes."""
        make: Callable[..., Any] = AutoModelForCausalLM.from_config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make(self.config(), dtype=torch.float32)
            with torch.no_grad():
                for weight in model.parameters():
                    # A norm's first weights are all 1 or all 0, which would hide that they were not loaded.
                    if weight.dim() == 1:
                        weight.add_(torch.randn_like(weight) * 0.1)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        return folder


FAMILIES: dict[str, ModelFamily] = {
    family.model_type: family
    for family in (
        ModelFamily("Llama 2 and 3, SmolLM2", "llama", {}),
        ModelFamily("Qwen 2 and 2.5", "qwen2", {"tie_word_embeddings": True}, "tied embeddings, biases"),
        ModelFamily("Qwen 3", "qwen3", {"head_dim": 32}, "norms of queries and keys"),
        ModelFamily(
            "Gemma 2",
            "gemma2",
            # Caps so low that their absence shows.
            {**_WINDOWED, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 1.5}
            | {"final_logit_softcapping": 3.0},
            "soft caps of attention scores and logits, windows in every other layer, tied embeddings",
        ),
        ModelFamily(
            "Gemma 3, text only",
            "gemma3_text",
            {**_WINDOWED, "query_pre_attn_scalar": 24},
            "windows in most layers, two rotary embeddings, norms of queries and keys, tied embeddings",
        ),
        ModelFamily("Mistral", "mistral", {"sliding_window": WINDOW}, "a window in all layers"),
        ModelFamily("Phi 1.5 and 2", "phi", {}, "layers in parallel, biases, rotation of half of each head"),
        ModelFamily(
            "Phi 3",
            "phi3",
            {"sliding_window": WINDOW},
            "fused projections, a window in all layers; with longrope no sequence beyond the original length",
        ),
        ModelFamily("OLMo", "olmo", {}, "norms without weights"),
        ModelFamily("OLMo 2", "olmo2", {}, "norms after the layers, and of queries and keys"),
        ModelFamily("OLMo 3", "olmo3", _WINDOWED, "as OLMo 2, windows in most layers"),
        ModelFamily("SmolLM3", "smollm3", {"no_rope_layers": [1, 0]}, "layers without rotary embedding"),
        ModelFamily(
            "Qwen 3 MoE",
            "qwen3_moe",
            {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            "experts",
        ),
        ModelFamily("Mixtral", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, "experts"),
    )
}

#: Checks of `tests/integration/families` for each family, as columns of docs/support.md.
_COLUMNS = (
    "SFT and GRPO steps, all weights",
    "LoRA",
    "torch engine: refits, adapters",
    "export, read by transformers",
    "vLLM: export, refit, merged adapter",
)


def support_table() -> list[str]:
    """Return the lines of the table of families in docs/support.md, whose tests have no exceptions."""
    header = ("models", "`model_type`", "class", *_COLUMNS, "peculiarities")
    rows = [
        (family.models, f"`{family.model_type}`", f"`{family.class_name}`")
        + ("tested",) * len(_COLUMNS)
        + (family.remark,)
        for family in FAMILIES.values()
    ]
    return [f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows)]


#: Sizes of tiny configs of other types, for the fields that a type has.
_OTHER_SIZES: dict[str, Any] = {
    "head_dim": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
#: Sizes that a type has otherwise.
_TYPE_SIZES: dict[str, dict[str, Any]] = {
    # Their heads have two parts, with widths of their own.
    "deepseek_v2": {"num_key_value_heads": 2, "head_dim": 16},
    "deepseek_v3": {"num_key_value_heads": 2, "head_dim": 16},
}


def other_model(model_type: str) -> ModelFamily:
    """Return a tiny model of a supported type that is none of the families; a window is a short one."""
    fields = _OTHER_SIZES | _TYPE_SIZES.get(model_type, {})
    if getattr(CONFIG_MAPPING[model_type](), "sliding_window", None):
        fields["sliding_window"] = WINDOW
    return ModelFamily(model_type, model_type, fields)


class Oracle:
    """transformers' own forward pass in float64 over an exported folder."""

    def __init__(self, folder: Path) -> None:
        make: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
        model = make(folder, dtype=torch.float64, attn_implementation="eager", local_files_only=True)
        if hasattr(model, "set_experts_implementation"):
            # The fast one has no float64.
            model.set_experts_implementation("eager")
        self._model = model.eval()

    def logprobs(self, sequence: list[int]) -> list[float]:
        """Return the log-probability of each token of a sequence but the first."""
        with torch.no_grad():
            logits = self._model(torch.tensor([sequence]), use_cache=False).logits[0, :-1]
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(sequence[1:])[:, None])
        logprobs: list[float] = chosen[:, 0].tolist()
        return logprobs
