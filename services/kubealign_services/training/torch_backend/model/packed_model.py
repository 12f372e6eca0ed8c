"""A Hugging Face trunk on packed sequences, with the heads that a role needs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import sequence_temperatures
from kubealign_services.data.models.context_length import context_length
from kubealign_services.training.contract import Head
from kubealign_services.training.expert_routing import (
    ROUTING,
    UnsupportedRouting,
    check_routing,
    find_routers,
)
from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.context_parallel.token_slice import (
    TokenSlice,
    pad_layout,
    slice_tokens,
)
from kubealign_services.training.torch_backend.logprobs.candidate_logprobs import (
    candidate_logprobs,
    topk_logprobs,
)
from kubealign_services.training.torch_backend.logprobs.chunked_logits import Temperature
from kubealign_services.training.torch_backend.logprobs.collision import collision_probabilities
from kubealign_services.training.torch_backend.logprobs.token_logprobs import token_logprobs
from kubealign_services.training.torch_backend.model.nf4_linear import weight_shapes
from kubealign_services.training.torch_backend.model.router_balance import RouterBalance
from kubealign_services.training.torch_backend.model.routing_replay import (
    ROUTING_ARGUMENT,
    RoutingReplay,
    recorded_experts,
)
from kubealign_services.training.torch_backend.packing.packed_attention import (
    PLAN_ARGUMENT,
    PackedAttentionPlan,
    plan_attention,
)
from kubealign_services.training.torch_backend.packing.shared_prompts import share_prompts


@dataclass(frozen=True)
class PackedTokens:
    """Inputs of a forward pass, on the model's device.

    U is the number of tokens of the pack, T that of the batch. They differ when the pack stores shared
    prompts once. H is the number of hidden states on this rank: U, or the slice's tokens when the ranks of a
    context group share the pack. The indices are then of tokens whose outputs this rank computes: those with
    the hidden state that they depend on in the slice.

    Attributes:
        tokens, positions: int64 [1, U], the pack.
        predicted_indices: int64 [P], the batch's tokens that have a predecessor in their sequence.
        target_indices: int64 [C], those of them whose log-probabilities are needed.
        plan: Attention plan of the pack.
        temperature: Log-probabilities are those of softmax(logits / temperature): a number, or float64 [C]
            where the batch's sequences differ.
        candidates: int64 [C, K], alternative tokens for each target; None without candidates.
        candidates_temperature: Temperature of the candidates' log-probabilities.
        pack_indices: int64 [T], index in the pack of each of the batch's tokens; None when the pack is the
            batch, U = T.
        token_slice: This rank's tokens when the ranks of a context group share the pack; else None.
        own_indices: int64 [O], the batch's tokens whose hidden states are in the slice; None without one.
        routing: int64 [layers, H, k], recorded experts that the model replays for the tokens that it
            computes; see `routing_replay`. None: its routers decide.
    """

    tokens: Tensor
    positions: Tensor
    predicted_indices: Tensor
    target_indices: Tensor
    plan: PackedAttentionPlan
    temperature: Temperature
    candidates: Tensor | None = None
    candidates_temperature: Temperature = 1.0
    pack_indices: Tensor | None = None
    token_slice: TokenSlice | None = None
    own_indices: Tensor | None = None
    routing: Tensor | None = None

    @property
    def targets(self) -> Tensor:
        """int64 [C]: the target tokens."""
        return self.tokens[
            0, self.target_indices if self.pack_indices is None else self.pack_indices[self.target_indices]
        ]

    @property
    def length(self) -> int:
        """T: number of tokens of the batch."""
        return self.tokens.shape[1] if self.pack_indices is None else len(self.pack_indices)

    def state_indices(self, indices: Tensor) -> Tensor:
        """Return the index among the H hidden states of each of these tokens of the batch."""
        if self.pack_indices is not None:
            indices = self.pack_indices[indices]
        return indices if self.token_slice is None else indices - self.token_slice.rows.start

    def predecessor_indices(self, indices: Tensor) -> Tensor:
        """Return the index among the H hidden states of the predecessor of each of these tokens."""
        return self.state_indices(indices - 1)

    @staticmethod
    def from_batch(
        batch: Batch,
        device: torch.device,
        shared: bool = False,
        replays: bool = False,
        context_group: ContextGroup | None = None,
    ) -> "PackedTokens":
        """Build the inputs for a batch.

        Reads its temperatures (see `batch.temperatures`), its scalar `candidates_temperature` (default: the
        same), its column loss_mask, which selects the targets, and its column candidates, where they exist.
        Raises ValueError for a temperature that is not above 0.

        Args:
            shared: Compute equal prompts (see `share_prompts`) once.
            replays: The model replays the experts in the batch's column routing.
            context_group: Ranks that share the pack's tokens; all of them pass the same batch.
        """
        positions = batch.positions
        mask = batch.token_columns.get("loss_mask")
        is_target = positions > 0 if mask is None else (positions > 0) & (mask != 0)
        pack = share_prompts(batch) if shared else None
        computed = slice(None) if pack is None else pack.computed_indices
        tokens, pack_positions = batch.tokens[computed].long(), positions[computed]
        is_predicted = positions > 0
        part: TokenSlice | None = None
        own: Tensor | None = None
        seams, layout = batch.cu_seqlens, pack
        if context_group is not None:
            part = slice_tokens(tokens, pack_positions, context_group)
            is_own = part.contains(torch.arange(len(positions)) if pack is None else pack.pack_indices)
            own = is_own.nonzero()[:, 0]
            is_computed = is_own.roll(1)  # an output depends on the token before it
            is_predicted, is_target = is_predicted & is_computed, is_target & is_computed
            seams, layout = pad_layout(seams, pack, part.padding)
        temperature = _target_temperature(batch, is_target, device)
        candidates_temperature = batch.scalars.get("candidates_temperature", temperature)
        if not isinstance(candidates_temperature, Tensor) and not candidates_temperature > 0:
            raise ValueError(f"a temperature is {candidates_temperature}; it must be above 0")
        candidates = batch.token_columns.get("candidates")
        routing = recorded_experts(batch, computed, device) if replays else None
        return PackedTokens(
            tokens=tokens[None].to(device),
            positions=pack_positions[None].to(device),
            predicted_indices=is_predicted.nonzero()[:, 0].to(device),
            target_indices=is_target.nonzero()[:, 0].to(device),
            plan=replace(plan_attention(seams, device, layout), context_group=context_group),
            temperature=temperature,
            candidates=None if candidates is None else candidates[is_target].long().to(device),
            candidates_temperature=candidates_temperature,
            pack_indices=None if pack is None else pack.pack_indices.to(device),
            token_slice=None if part is None else part.to(device),
            own_indices=None if own is None else own.to(device),
            routing=routing if routing is None or part is None else part.select_experts(routing),
        )


class PackedModel(nn.Module):
    """A trunk with its heads.

    The forward pass returns the requested columns of `ModelOutputs` by name, each [T] (values of several
    scores: [T, N]) in at least fp32, in a dict, so that hooks of the module can find the tensors. The ranks
    of a context group return the same columns.

    Attributes:
        backbone: A causal language model, or a bare trunk.
        score: The head of the value or of the N scores, [N, hidden], or None.
    """

    def __init__(self, backbone: PreTrainedModel, head: Head, score: nn.Linear | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.score = score
        #: True when a pack with shared prompts gives the same outputs; see `can_share_prompts`.
        self.can_share_prompts = False
        #: Both are set by `prepare_routers`. None: recorded experts of a batch are ignored.
        self.routing_replay: RoutingReplay | None = None
        self.router_balance: RouterBalance | None = None

    @property
    def shares_prompts(self) -> bool:
        """True when equal prompts may be computed once now: not while dropout draws for each of them."""
        return self.can_share_prompts and not (self.training and has_dropout(self.backbone))

    def prepare_routers(self) -> None:
        """Set `routing_replay` and `router_balance`, if the model has experts of a form that both support.

        The model is in evaluation mode and not sharded.
        """
        try:
            routers, shape = find_routers(self.backbone)
        except UnsupportedRouting:
            return
        self.routing_replay = RoutingReplay(routers, shape)
        self.router_balance = RouterBalance(routers, shape)

    def pack(
        self, batch: Batch, device: torch.device, context_group: ContextGroup | None = None
    ) -> PackedTokens:
        """Return this rank's inputs of a forward pass over a batch; see `PackedTokens.from_batch`."""
        replays = self.routing_replay is not None
        return PackedTokens.from_batch(batch, device, self.shares_prompts, replays, context_group)

    @property
    def attention_cost(self) -> float:
        """Cost of attention for a sequence of n tokens, divided by n^2, where a token costs the layers'
        matrices 1.

        A layer's attention takes 2 n^2 hidden operations (two products, half of each hidden by causality),
        its matrices take 2 for each weight.
        """
        config = self.backbone.config.get_text_config()
        matrices = [shape for shape, _ in weight_shapes(self.backbone) if len(shape) > 1]
        weights = sum(shape.numel() for shape in matrices if shape[0] != config.vocab_size)
        return float(config.hidden_size * config.num_hidden_layers / max(1, weights))

    @property
    def lm_head(self) -> nn.Linear | None:
        """The language-model head; None for a bare trunk."""
        if self.backbone.base_model is self.backbone:
            return None
        head = self.backbone.get_output_embeddings()
        return head if isinstance(head, nn.Linear) else None

    @property
    def logit_softcap(self) -> float | None:
        """Cap of the head's logits (Gemma 2), see `compute_logits`; None without a cap."""
        cap: float | None = getattr(self.backbone.config.get_text_config(), "final_logit_softcapping", None)
        return cap

    def check_batch(self, batch: Batch, outputs: frozenset[str]) -> None:
        """Raise ValueError for tokens, positions or recorded experts that the model does not have, or for an
        output without a head.
        """
        config = self.backbone.config.get_text_config()
        lowest, highest = int(batch.tokens.min()), int(batch.tokens.max())
        if lowest < 0 or highest >= config.vocab_size:
            raise ValueError(
                f"the batch holds token {lowest if lowest < 0 else highest}; "
                f"the model's vocabulary has {config.vocab_size}"
            )
        most = context_length(config)
        longest = int(batch.lengths.max())
        if most is not None and longest > most:
            raise ValueError(
                f"the batch holds a sequence of {longest} tokens; the model has {most} positions"
            )
        if self.routing_replay is not None and ROUTING in batch.token_columns:
            check_routing(batch.token_columns[ROUTING], self.routing_replay.shape)
        available = ({"values"} if self.score is not None else set()) | (
            {"logprobs", "entropy", "collision", "candidate_logprobs"} if self.lm_head is not None else set()
        )
        if not outputs <= available:
            raise ValueError(
                f"outputs {sorted(outputs - available)} were asked for; "
                f"a {self.head} model gives {sorted(available)}"
            )

    @torch.no_grad()
    def topk_logprobs(self, packed: PackedTokens, count: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the most likely tokens at each target among the vocabulary's first `tokens`.

        Returns (tokens int64 [C, K], their log-probabilities [C, K]). A rank of a context group has targets
        of its own.
        """
        vocabulary = self.lm_head
        assert vocabulary is not None
        weight, bias = vocabulary.weight[:tokens], vocabulary.bias
        hidden = self.hidden(packed)[packed.predecessor_indices(packed.target_indices)]
        return topk_logprobs(
            hidden,
            weight,
            None if bias is None else bias[:tokens],
            count,
            packed.temperature,
            self.logit_softcap,
        )

    def hidden(self, packed: PackedTokens) -> Tensor:
        """Return the trunk's last hidden states, [H, hidden]."""
        part = packed if packed.token_slice is None else packed.token_slice
        replayed = {} if packed.routing is None else {ROUTING_ARGUMENT: packed.routing}
        hidden: Tensor = self.backbone.base_model(
            input_ids=part.tokens,
            position_ids=part.positions,
            use_cache=False,
            **{PLAN_ARGUMENT: packed.plan},
            **replayed,
        ).last_hidden_state[0]
        return hidden

    def _candidate_column(self, hidden: Tensor, packed: PackedTokens) -> Tensor:
        vocabulary, candidates = self.lm_head, packed.candidates
        assert vocabulary is not None
        if candidates is None:
            raise ValueError("candidate_logprobs were asked for, and the batch has no column candidates")
        logprobs = candidate_logprobs(
            hidden[packed.predecessor_indices(packed.target_indices)],
            vocabulary.weight,
            vocabulary.bias,
            candidates,
            packed.candidates_temperature,
            self.logit_softcap,
        )
        return _scatter_column(logprobs, packed.target_indices, packed)

    def forward(self, packed: PackedTokens, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Compute the requested columns.

        A value head's column is shifted by one: a token holds the value of the state before it.
        """
        hidden = self.hidden(packed)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        columns: dict[str, Tensor] = {}
        if outputs & {"logprobs", "entropy"}:
            vocabulary = self.lm_head
            assert vocabulary is not None
            logprobs, entropy = token_logprobs(
                hidden[packed.predecessor_indices(packed.target_indices)],
                vocabulary.weight,
                vocabulary.bias,
                packed.targets,
                packed.temperature,
                "entropy" in outputs,
                self.logit_softcap,
            )
            columns = {
                "logprobs": _scatter_column(logprobs, packed.target_indices, packed),
                "entropy": _scatter_column(entropy, packed.target_indices, packed),
            }
        if "collision" in outputs:
            assert self.lm_head is not None
            collision = collision_probabilities(
                hidden[packed.predecessor_indices(packed.target_indices)],
                self.lm_head.weight,
                self.lm_head.bias,
                packed.temperature,
                self.logit_softcap,
            )
            columns["collision"] = _scatter_column(collision, packed.target_indices, packed)
        if "candidate_logprobs" in outputs:
            columns["candidate_logprobs"] = self._candidate_column(hidden, packed)
        if "values" in outputs:
            assert self.score is not None
            weight = self.score.weight.to(wide)
            if self.head is Head.VALUE:
                values = hidden[packed.predecessor_indices(packed.predicted_indices)].to(wide) @ weight[0]
                columns["values"] = _scatter_column(values, packed.predicted_indices, packed)
            else:
                # Not a view of the scores: FSDP2 hooks into returned tensors.
                scores = hidden.to(wide) @ (weight[0] if len(weight) == 1 else weight.T)
                columns["values"] = _score_column(scores, packed)
        columns = {name: columns[name] for name in sorted(outputs)}
        return columns if packed.token_slice is None else packed.token_slice.sum_columns(columns)


def _target_temperature(batch: Batch, is_target: Tensor, device: torch.device) -> Temperature:
    """Return the number that all sequences share, or each target's temperature, float64 [C]."""
    temperatures = sequence_temperatures(batch)
    invalid = temperatures[~(temperatures > 0)]
    if len(invalid):
        raise ValueError(f"a temperature is {float(invalid[0])}; it must be above 0")
    if len(temperatures) and bool((temperatures == temperatures[0]).all()):
        return float(temperatures[0])
    return temperatures[batch.sequence_of_token[is_target]].to(device)


def _scatter_column(values: Tensor, indices: Tensor, packed: PackedTokens) -> Tensor:
    """Scatter one value, or K values, for each index into [T] or [T, K], with 0 elsewhere."""
    zeros = torch.zeros((packed.length, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return zeros.index_add(0, indices, values)


def _score_column(scores: Tensor, packed: PackedTokens) -> Tensor:
    """Return the scores [H, ...] of the hidden states as a column [T, ...]."""
    if packed.own_indices is not None:
        return _scatter_column(scores[packed.state_indices(packed.own_indices)], packed.own_indices, packed)
    return scores if packed.pack_indices is None else scores[packed.pack_indices]


def has_dropout(backbone: PreTrainedModel) -> bool:
    """Return True when the model uses dropout in training."""
    settings = backbone.config.get_text_config().to_dict()
    rates = [each for name, each in settings.items() if "drop" in name and isinstance(each, int | float)]
    rates += [module.p for module in backbone.modules() if isinstance(module, nn.Dropout)]
    return any(rate > 0 for rate in rates)
