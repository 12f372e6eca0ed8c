"""Online algorithms, which learn from their own samples.

Plugins derive from `OnlineAlgorithm` or `ClippedOnlineAlgorithm`.
"""

from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm, OnlineAlgorithm

__all__ = ["ClippedOnlineAlgorithm", "OnlineAlgorithm"]
