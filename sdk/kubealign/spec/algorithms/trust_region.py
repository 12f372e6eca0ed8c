"""Alternatives to the clip range: how a policy loss keeps the policy near the one that sampled."""

from pydantic import Field, model_validator

from kubealign.spec.base import SpecModel, SpecUnion, field_errors


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


class ClipCov(SpecModel):
    """Clip-Cov (Cui et al. 2025): some tokens with a high covariance have no gradient.

    The covariance of a token is (A - mean of A) (log p - mean of log p), with the means over the minibatch's
    response tokens and p before the step. Tokens with a high covariance lower the entropy most. The clip
    range stays in force.
    """

    fraction: float = Field(
        0.0002,
        gt=0,
        lt=1,
        description="Largest share of the minibatch's response tokens without a gradient; at least one "
        "token.",
    )
    low: float = Field(1.0, ge=0, description="Lower bound of the covariance of such tokens.")
    high: float = Field(5.0, gt=0, description="Upper bound of the covariance of such tokens.")

    @model_validator(mode="after")
    def _order(self) -> "ClipCov":
        if self.low >= self.high:
            raise field_errors("ClipCov", (("low",), self.low, f"must be below high ({self.high})"))
        return self


class KLCov(SpecModel):
    """KL-Cov (Cui et al. 2025): the tokens with the highest covariance stay near the old policy.

    The covariance is that of clipCov. The ratio has no bound. Without a move of the policy the penalty has no
    gradient, so it acts from the second optimiser step of a step on.
    """

    fraction: float = Field(
        0.0002,
        gt=0,
        lt=1,
        description="Share of the minibatch's response tokens that are penalised, at least one token.",
    )
    coefficient: float = Field(1.0, gt=0, description="Weight of the penalty |log p - log p_old|.")


class TrustRegion(SpecUnion):
    """Trust region in place of the clip range, or with clipCov in addition to it.

    The ratio is that of each token.
    """

    sapo: SAPO | None = Field(None, description="Sigmoid of the ratio instead of a bound.")
    gmpo: GMPO | None = Field(None, description="Geometric mean of a response's clipped ratios.")
    dppo: DPPO | None = Field(None, description="Bound on the change of each token's probability.")
    clip_cov: ClipCov | None = Field(
        None, description="Clip range, and no gradient at some tokens with a high covariance."
    )
    kl_cov: KLCov | None = Field(None, description="Penalty on the tokens with the highest covariance.")
