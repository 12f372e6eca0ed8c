"""Alternatives to the clip range: how a policy loss keeps the policy near the one that sampled."""

from pydantic import Field

from kubealign.spec.base import SpecModel, SpecUnion


class SAPO(SpecModel):
    """Soft adaptive policy optimisation (Gao et al. 2025): the ratio passes through a sigmoid."""

    positive_temperature: float = Field(
        1.0, gt=0, description="Steepness of the sigmoid where the advantage is positive."
    )
    negative_temperature: float = Field(
        1.05,
        gt=0,
        description="Steepness where the advantage is negative; higher, because such updates raise many "
        "other tokens.",
    )


class GMPO(SpecModel):
    """Geometric-mean policy optimisation (Zhao et al. 2025).

    The ratio is the geometric mean of a response's clipped ratios. One outlier does not decide for its
    response, so the range may be wide.
    """

    low: float = Field(0.4, gt=0, description="Largest decrease of a token's log ratio, in nats.")
    high: float = Field(0.4, gt=0, description="Largest increase of a token's log ratio, in nats.")


class DPPO(SpecModel):
    """Divergence PPO (Qi et al. 2026): a token is left out where its probability has moved too far.

    The ratio of a rare token is large long before the distribution has changed, and that of a likely one is
    not; the difference of the probabilities is the total variation between token and rest.
    """

    low: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Largest decrease of a token's probability where the advantage is negative.",
    )
    high: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Largest increase of a token's probability where the advantage is positive.",
    )


class TrustRegion(SpecUnion):
    """Trust region in place of the clip range. The ratio is that of each token."""

    sapo: SAPO | None = Field(None, description="Sigmoid of the ratio instead of a bound.")
    gmpo: GMPO | None = Field(None, description="Geometric mean of a response's clipped ratios.")
    dppo: DPPO | None = Field(None, description="Bound on the change of each token's probability.")
