"""A Hugging Face causal LM whose forward pass uses the engine's attention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers import initialization as transformers_initialization

from kubealign_services.data.models.context_length import context_length
from kubealign_services.generation.torch_engine.attention.attention_plan import (
    ATTENTION_NAME,
    EngineAttentionPlan,
    LayerAttention,
    ProbePlan,
    UnsupportedEngineModel,
)
from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import has_compiled_kernels
from kubealign_services.generation.torch_engine.cpu.forward_pass import VerifiedFastForward

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})


class CausalModel:
    """A causal LM in evaluation mode, with zero weights until they are loaded.

    layers: attention requirements by layer. context: largest number of tokens of a sequence. vocabulary:
    number of logits.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        """Build the model.

        Raises UnsupportedEngineModel.

        Args:
            config: A transformers configuration.
        """
        text = config.get_text_config()
        _check_config(text)
        self.context = _context(text)
        self.module = self._build_module(config, dtype, device)
        # Building the model without initial values skips the weight ties too.
        self.module.tie_weights()
        self.module.eval().requires_grad_(False)
        # The probe runs before weights are loaded: on zeros, not on uninitialised memory that might be NaN.
        for weight in self.module.parameters():
            weight.zero_()
        self.device = device
        self.dtype = dtype
        self.vocabulary = int(text.vocab_size)
        self._fast_forward: VerifiedFastForward | None = None
        self.layers = self._probe(text)
        if has_compiled_kernels(device, dtype):
            windows = {layer: use.window for layer, use in self.layers.items()}
            self._fast_forward = VerifiedFastForward(self.module, windows, dtype, self._module_forward)

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: EngineAttentionPlan, keep: Tensor | None
    ) -> Tensor:
        """Return logits float32 [len(keep), vocabulary] after the tokens with the indices `keep` (None: after
        all tokens).

        Args:
            tokens: int64 [t].
            positions: int64 [t].
        """
        forward = self._module_forward if self._fast_forward is None else self._fast_forward.forward
        return forward(tokens, positions, plan, keep)

    def invalidate_weights(self) -> None:
        """Drop everything derived from the weights, which are about to change."""
        if self._fast_forward is not None:
            self._fast_forward.invalidate_weights()

    def _module_forward(
        self, tokens: Tensor, positions: Tensor, plan: EngineAttentionPlan, keep: Tensor | None
    ) -> Tensor:
        output = self.module(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=0 if keep is None else keep,
            kubealign_plan=plan,
        )
        logits: Tensor = output.logits[0].float()
        return logits

    def _build_module(self, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
        """Build the module that this process runs, untied and without weights."""
        return self._instantiate(config, dtype, device)

    @staticmethod
    def _instantiate(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
        with transformers_initialization.no_init_weights(), torch.device(device):
            make: Callable[..., Any] = AutoModelForCausalLM.from_config
            try:
                return make(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
            except (ValueError, KeyError) as error:
                raise UnsupportedEngineModel(
                    f"model type {config.model_type!r} does not work with the engine's attention: {error}"
                ) from error

    @torch.inference_mode()
    def _probe(self, text: Any) -> dict[int, LayerAttention]:
        """Run one pass over two tokens, which shows whether every layer calls the engine's attention, and
        record its arguments.
        """
        plan = ProbePlan()
        two = torch.arange(2, device=self.device)
        name = type(self.module).__name__
        try:
            logits = self.forward(two.clamp(max=self.vocabulary - 1), two, plan, keep=two[1:])
        except TypeError as error:
            raise UnsupportedEngineModel(f"{name} does not take the engine's arguments: {error}") from error
        if logits.shape != (1, self.vocabulary):
            raise UnsupportedEngineModel(
                f"{name} gives logits {list(logits.shape)}, not [1, {self.vocabulary}]"
            )
        if len(plan.layers) != text.num_hidden_layers:
            raise UnsupportedEngineModel(
                f"{name} has {text.num_hidden_layers} layers, of which {len(plan.layers)} use transformers' "
                "attention interface"
            )
        _check_windows(text, plan.layers, name)
        return plan.layers


def _check_config(text: Any) -> None:
    kind = f"model type {text.model_type!r}"
    if getattr(text, "is_encoder_decoder", False):
        raise UnsupportedEngineModel(f"{kind} is an encoder-decoder; the engine runs causal language models")
    if getattr(text, "attention_chunk_size", None):
        raise UnsupportedEngineModel(
            f"{kind} attends in chunks (attention_chunk_size {text.attention_chunk_size})"
        )
    unsupported = sorted(set(getattr(text, "layer_types", None) or ()) - ATTENTION_LAYERS)
    if unsupported:
        raise UnsupportedEngineModel(
            f"{kind} has layers of the types {unsupported}; the engine has {sorted(ATTENTION_LAYERS)}"
        )


def _context(text: Any) -> int:
    context = context_length(text)
    if context is None:
        raise UnsupportedEngineModel(
            f"model type {text.model_type!r} states no max_position_embeddings, so prompts cannot be checked "
            "against it"
        )
    return context


def _check_windows(text: Any, layers: dict[int, LayerAttention], name: str) -> None:
    """Raise UnsupportedEngineModel for a layer that does not pass on its configured window, which would be
    silently ignored.
    """
    types = getattr(text, "layer_types", None)
    stated = getattr(text, "sliding_window", None)
    for layer, use in layers.items():
        slides = types[layer] == "sliding_attention" if types and layer < len(types) else stated is not None
        if slides and use.window is None:
            raise UnsupportedEngineModel(
                f"{name} does not hand the sliding window of layer {layer} to the attention function"
            )
