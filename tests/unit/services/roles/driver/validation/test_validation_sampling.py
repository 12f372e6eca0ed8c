"""Sampling parameters of a validation."""

from kubealign.spec.sections.rollout import SamplingSpec
from kubealign.spec.sections.validation import ValidationSampling
from kubealign_services.roles.driver.builder import validation_sampling

TRAINING = SamplingSpec(max_tokens=9, temperature=0.9, top_k=5, top_p=0.8, stop=["x"])


def test_a_validation_has_the_rollouts_truncation_unless_it_states_its_own() -> None:
    assert validation_sampling(TRAINING, ValidationSampling()) == TRAINING.model_copy(
        update={"temperature": 1.0}
    )
    own = validation_sampling(TRAINING, ValidationSampling(temperature=0.6, top_k=0, top_p=0.95))
    assert (own.temperature, own.top_k, own.top_p) == (0.6, 0, 0.95)
    assert (own.max_tokens, own.stop) == (9, ["x"])
    assert validation_sampling(TRAINING, ValidationSampling(max_tokens=64)).max_tokens == 64
