"""Surrogate losses with another trust region than a clipped ratio."""

from collections.abc import Callable, Mapping
from typing import Any

from kubealign.spec.algorithms import TrustRegion
from kubealign_services.algorithms.losses.surrogate import Surrogate
from kubealign_services.algorithms.losses.trust_region.dppo import DivergenceMask
from kubealign_services.algorithms.losses.trust_region.gmpo import GeometricMeanRatio
from kubealign_services.algorithms.losses.trust_region.sapo import SigmoidRatio

_SURROGATES: Mapping[str, Callable[[Any], Surrogate]] = {
    "sapo": SigmoidRatio,
    "gmpo": GeometricMeanRatio,
    "dppo": DivergenceMask,
}


def make_trust_region(spec: TrustRegion) -> Surrogate:
    """Return the surrogate loss that the spec names."""
    return _SURROGATES[spec.member](spec.value)
