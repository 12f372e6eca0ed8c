"""Losses against the code of TRL's trainers, given the same log-probabilities: those of its GRPOTrainer, of
its DPOTrainer, and the divergences of its GKDTrainer.

TRL counts tokens of one process without gradient accumulation: the whole batch is one micro-batch.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.factory import load_algorithm
from kubealign_services.algorithms.losses.teacher_divergence import divergence_between, with_rest
from kubealign_services.batch.packed import Batch
from support.batches import random_batch

pytestmark = pytest.mark.slow

RESPONSES, GROUPS = [3, 1, 6, 2, 2, 5, 1, 4], [0, 0, 0, 0, 1, 1, 1, 1]
#: Longest response that the job allows.
MAX_TOKENS = 8
K3 = spec.KL(
    placement=spec.KLPlacement.LOSS,
    estimator=spec.KLEstimator.K3,
    corrected=False,
    fixed=spec.FixedKL(coefficient=0.3),
)
CLIP = spec.Clip(low=0.1, high=0.2)


@dataclass(frozen=True)
class Case:
    """An algorithm's entry, and the settings of TRL's trainer that mean the same.

    arguments: those that TRL reads from its configuration; the others are attributes of its trainer.
    """

    name: str
    entry: spec.OnPolicySpec
    settings: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)


def clipped(name: str, loss_type: str, aggregation: spec.LossAggregation, **fields: Any) -> Case:
    entry = spec.GRPOSpec(clip=CLIP, aggregation=aggregation, **fields)
    return Case(name, entry, {"loss_type": loss_type})


MEAN = spec.LossAggregation.SEQUENCE_MEAN
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0.0))
CASES = [
    clipped("grpo", "grpo", MEAN, kl=NO_KL),
    clipped("bnpo", "bnpo", spec.LossAggregation.TOKEN_MEAN, kl=NO_KL),
    clipped("dapo", "dapo", spec.LossAggregation.TOKEN_MEAN, kl=NO_KL),
    clipped("dr_grpo", "dr_grpo", spec.LossAggregation.FIXED_LENGTH, kl=NO_KL),
    Case(
        "kl",
        spec.GRPOSpec(clip=CLIP, aggregation=MEAN, kl=K3),
        {"loss_type": "grpo", "beta": 0.3},
    ),
    Case(
        "corrected_kl",
        spec.GRPOSpec(clip=CLIP, aggregation=MEAN, kl=K3.model_copy(update={"corrected": True})),
        {"loss_type": "grpo", "beta": 0.3},
        {"use_bias_correction_kl": True},
    ),
    Case(
        "dual_clip",
        spec.GRPOSpec(clip=CLIP.model_copy(update={"dual": 1.3}), aggregation=MEAN, kl=NO_KL),
        {"loss_type": "grpo"},
        {"delta": 1.3},
    ),
    Case(
        "gspo",
        spec.GSPOSpec(clip=CLIP, aggregation=MEAN, kl=NO_KL),
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    Case(
        "cispo",
        spec.CISPOSpec(ratio_cap=1.1, aggregation=spec.LossAggregation.TOKEN_MEAN, kl=NO_KL),
        {"loss_type": "cispo", "epsilon_high": 1.1},
    ),
    Case(
        "sapo",
        spec.GRPOSpec(
            trust_region=spec.TrustRegion.model_validate({"sapo": {"negativeTemperature": 1.5}}),
            aggregation=MEAN,
            kl=NO_KL,
        ),
        {"loss_type": "sapo"},
        {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.5},
    ),
    Case(
        "off_policy_mask",
        spec.GRPOSpec(
            clip=CLIP, aggregation=MEAN, kl=NO_KL, off_policy_mask=spec.OffPolicyMask(threshold=0.05)
        ),
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    ),
    Case(
        "top_entropy",
        spec.GRPOSpec(clip=CLIP, aggregation=MEAN, kl=NO_KL, top_entropy_fraction=0.3),
        {"loss_type": "grpo", "top_entropy_quantile": 0.3},
    ),
    Case(
        "entropy_bonus",
        spec.GRPOSpec(clip=CLIP, aggregation=MEAN, kl=NO_KL, entropy_coefficient=0.1),
        {"loss_type": "grpo", "_entropy_bonus_enabled": True, "entropy_coef": 0.1},
    ),
]


class OneProcess:
    """Stand-in for the parts of accelerate that the trainers call, in one process."""

    num_processes = 1
    sync_gradients = True
    device = torch.device("cpu")

    def gather(self, values: Tensor) -> Tensor:
        return values

    def reduce(self, values: Tensor, reduction: str) -> Tensor:
        return values

    def gather_for_metrics(self, values: Tensor) -> Tensor:
        return values

    def pad_across_processes(self, values: Tensor, dim: int, pad_index: float) -> Tensor:
        return values


def batch() -> Batch:
    """Advantages of two groups, and ratios on both sides of the clip range."""
    result = random_batch(RESPONSES, GROUPS, seed=3)
    result.scalars["max_tokens"] = float(MAX_TOKENS)
    noise = torch.randn(len(result.tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    result.token_columns["old_logprobs"] = result.token("behaviour_logprobs") + 0.2 * noise
    # The masks of TRL compare with the log-probabilities before the step.
    result.token_columns["engine_logprobs"] = result.token("old_logprobs")
    advantages = torch.tensor([0.5, -1.0, 1.2, -0.7, 0.9, -0.2, -1.1, 0.4], dtype=torch.float64)
    result.token_columns["advantages"] = advantages[result.sequence_of_token]
    result.token_columns["old_entropy"] = 1.0 + noise.cos()
    return result


def padded(source: Batch, column: Tensor) -> Tensor:
    """Return the response tokens of a column, [responses, longest]."""
    is_response = source.token("loss_mask").bool()
    return pad_sequence(list(column[is_response].split(RESPONSES)), batch_first=True)


def our_policy_loss(case: Case, logprobs: Tensor, entropy: Tensor) -> Tensor:
    minibatch = batch()
    name = "cispo" if isinstance(case.entry, spec.CISPOSpec) else "gspo" if case.name == "gspo" else "grpo"
    objective = load_algorithm(name)(case.entry).policy_objective()
    objective.prepare(minibatch)
    return objective.loss(ModelOutputs(logprobs=logprobs, entropy=entropy), minibatch).loss


def trl_policy_loss(case: Case, logprobs: Tensor, entropy: Tensor) -> Tensor:
    from trl import GRPOTrainer

    source = batch()
    mask = padded(source, source.token("loss_mask")).to(torch.float64)
    trainer: Any = GRPOTrainer.__new__(GRPOTrainer)
    settings = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": CLIP.low,
        "epsilon_high": CLIP.high,
        "use_vllm": False,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": MAX_TOKENS,
        "_entropy_bonus_enabled": False,
        "use_adaptive_entropy": False,
        "model": SimpleNamespace(training=True),
        "accelerator": OneProcess(),
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_get_per_token_logps_and_entropies": lambda *args, **options: (
            padded(source, logprobs),
            padded(source, entropy),
            None,
        ),
    }
    for name, value in (settings | case.settings).items():
        setattr(trainer, name, value)
    arguments = {"use_bias_correction_kl": False, "delta": None, "steps_per_generation": 1}
    trainer.args = SimpleNamespace(**(arguments | case.arguments))
    first = source.cu_seqlens[:-1].long()
    inputs = {
        "prompt_ids": torch.ones(len(RESPONSES), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(RESPONSES), 1, dtype=torch.long),
        "completion_ids": torch.ones(mask.shape, dtype=torch.long),
        "completion_mask": mask,
        "advantages": source.token("advantages")[first],
        "old_per_token_logps": padded(source, source.token("old_logprobs")),
        "ref_per_token_logps": padded(source, source.token("reference_logprobs")),
        "num_items_in_batch": mask.sum(),
    }
    loss: Tensor = trainer._compute_loss(None, inputs)
    return loss


def value_and_gradient(loss_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return a loss and its gradient by the log-probabilities and entropies of all tokens."""
    source = batch()
    leaves = [source.token(name).clone().requires_grad_() for name in ("behaviour_logprobs", "old_entropy")]
    loss = loss_of(*leaves)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return loss.detach(), torch.cat(gradients)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_policy_loss_and_gradient(case: Case) -> None:
    ours, theirs = (value_and_gradient(partial(loss, case)) for loss in (our_policy_loss, trl_policy_loss))
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    assert ours[1].abs().max() > 1e-3


def trl_preference_loss(loss_type: str, logprobs: Tensor, entropy: Tensor) -> Tensor:
    """Return the loss of DPOTrainer with beta 0.1. Chosen and rejected responses alternate in our batch, and
    are the halves of TRL's."""
    from trl import DPOTrainer

    source = batch()

    def halves(column: Tensor) -> Tensor:
        rows = padded(source, column)
        return torch.cat((rows[::2], rows[1::2]))

    # The first token of each sequence is its prompt.
    mask = halves(source.token("loss_mask"))
    completion_mask = torch.cat((torch.zeros(len(mask), 1, dtype=mask.dtype), mask), 1)
    reference = halves(source.token("reference_logprobs")).sum(1)
    chosen, rejected = reference.chunk(2)
    # Only its metrics read the other outputs.
    zeros = torch.zeros(mask.shape)
    outputs = SimpleNamespace(
        log_probs=halves(logprobs), entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
    )
    trainer: Any = DPOTrainer.__new__(DPOTrainer)
    settings = {
        "model": SimpleNamespace(training=False),
        "accelerator": OneProcess(),
        "aux_loss_enabled": False,
        "ld_alpha": None,
        "precompute_ref_logps": True,
        "f_divergence_type": "reverse_kl",
        "loss_types": [loss_type],
        "loss_weights": [1.0],
        "beta": 0.1,
        "use_weighting": False,
        "_total_train_tokens": 0,
        "_metrics": defaultdict(lambda: defaultdict(list)),
    }
    for name, value in settings.items():
        setattr(trainer, name, value)
    inputs = {
        "input_ids": torch.ones(completion_mask.shape, dtype=torch.long),
        "attention_mask": torch.ones(completion_mask.shape, dtype=torch.long),
        "completion_mask": completion_mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    loss: Tensor = trainer._compute_loss(lambda **options: outputs, inputs, return_outputs=False)
    return loss


@pytest.mark.parametrize(
    ("name", "entry", "loss_type"),
    [("dpo", spec.DPOSpec(beta=0.1), "sigmoid"), ("ipo", spec.IPOSpec(beta=0.1), "ipo")],
)
def test_preference_loss_and_gradient(name: str, entry: spec.ReferencePreferenceSpec, loss_type: str) -> None:
    def our_loss(logprobs: Tensor, entropy: Tensor) -> Tensor:
        pairs = batch()
        pairs.sequence_columns["rating"] = torch.tensor([1.0, 0.0] * (len(pairs) // 2), dtype=torch.float64)
        objective = load_algorithm(name)(entry).policy_objective()
        objective.prepare(pairs)
        return objective.loss(ModelOutputs(logprobs=logprobs), pairs).loss

    ours = value_and_gradient(our_loss)
    theirs = value_and_gradient(partial(trl_preference_loss, loss_type))
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    assert ours[1].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("entry", "beta"),
    [
        ({"divergence": "Forward"}, 0.0),
        ({"divergence": "Reverse"}, 1.0),
        ({"divergence": "JensenShannon", "beta": 0.3}, 0.3),
    ],
)
def test_divergence_from_a_teacher(entry: dict[str, Any], beta: float) -> None:
    from trl.experimental.gkd import GKDTrainer

    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(1, 6, 9, dtype=torch.float64, generator=generator) for _ in range(2))
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, reduction="none").sum(-1)[0]
    # All tokens but one are candidates, so that the bucket of the others is the last token.
    ours = divergence_between(
        *(with_rest(logits.log_softmax(-1)[0, :, :-1]) for logits in (teacher, student)),
        spec.TeacherDistribution.model_validate(entry),
    )
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
