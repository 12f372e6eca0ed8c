"""Offline algorithms, which learn from given rows.

Plugins derive from `OfflineAlgorithm`.
"""

from kubealign_services.algorithms.offline.base import OfflineAlgorithm

__all__ = ["OfflineAlgorithm"]
