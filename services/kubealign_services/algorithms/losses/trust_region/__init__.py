"""Surrogate losses with another trust region than a clipped ratio."""

from kubealign.spec.algorithms import TrustRegion
from kubealign_services.algorithms.losses.surrogate import Surrogate
from kubealign_services.algorithms.losses.trust_region.dppo import DivergenceMask
from kubealign_services.algorithms.losses.trust_region.gmpo import GeometricMeanRatio
from kubealign_services.algorithms.losses.trust_region.sapo import SigmoidRatio


def make_trust_region(spec: TrustRegion) -> Surrogate:
    """Return the surrogate loss that the spec names."""
    if spec.sapo is not None:
        return SigmoidRatio(spec.sapo)
    if spec.gmpo is not None:
        return GeometricMeanRatio(spec.gmpo)
    assert spec.dppo is not None
    return DivergenceMask(spec.dppo)
