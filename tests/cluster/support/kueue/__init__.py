"""Kueue of a test cluster: the real manager with its CRDs and webhooks, queues and Workloads."""

from .manager import KueueManager
from .objects import QueueRefused
from .queues import Queues
from .workloads import Workloads, condition, pod_set

__all__ = ["KueueManager", "QueueRefused", "Queues", "Workloads", "condition", "pod_set"]
