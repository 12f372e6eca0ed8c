"""Surrogate losses with another trust region than a clipped ratio, or with more than that."""

from collections.abc import Callable, Mapping
from typing import Any

from kubealign.spec.algorithms import Clip, TrustRegion
from kubealign_services.algorithms.losses.surrogate import ClippedRatio, Surrogate
from kubealign_services.algorithms.losses.trust_region.covariance import CovarianceClip, CovariancePenalty
from kubealign_services.algorithms.losses.trust_region.dppo import DivergenceMask
from kubealign_services.algorithms.losses.trust_region.gmpo import GeometricMeanRatio
from kubealign_services.algorithms.losses.trust_region.sapo import SigmoidRatio

_SURROGATES: Mapping[str, Callable[[Any], Surrogate]] = {
    "sapo": SigmoidRatio,
    "gmpo": GeometricMeanRatio,
    "dppo": DivergenceMask,
    "kl_cov": CovariancePenalty,
}


def make_trust_region(spec: TrustRegion, clip: Clip) -> Surrogate:
    """Return the surrogate loss that the spec names.

    Args:
        clip: Clip range, which only clip_cov keeps.
    """
    if spec.clip_cov is not None:
        return CovarianceClip(spec.clip_cov, ClippedRatio(clip))
    return _SURROGATES[spec.member](spec.value)
