"""kubealign: align language models on Kubernetes, or on one machine, from one `AlignmentJob`.

client = kubealign.AlignmentClient.local()      # or .cluster()
job = client.submit(Path("job.yaml"))
job.wait()
model = job.load_result().model
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubealign import errors
    from kubealign.client.async_client import AsyncAlignmentClient
    from kubealign.client.job import AsyncJob, Job
    from kubealign.client.metrics_table import MetricsTable
    from kubealign.client.python_inputs import reward_function, store_model, store_rows
    from kubealign.client.results.model_loader import Result
    from kubealign.client.sync_client import AlignmentClient
    from kubealign.spec.algorithms import Algorithm
    from kubealign.spec.job import AlignmentJob, AlignmentJobSpec, Critic, Metadata, Reference
    from kubealign.spec.loading.loader import load_jobs
    from kubealign.spec.sections.data import Data
    from kubealign.spec.sections.lifecycle import Checkpoint, Lifecycle
    from kubealign.spec.sections.models import Model, Policy
    from kubealign.spec.sections.rewards import Reward
    from kubealign.spec.sections.rollout import Rollout
    from kubealign.spec.sections.training import Trainer
    from kubealign.spec.sections.validation import Validation
    from kubealign.spec.status import AlignmentJobStatus, JobPhase

__version__ = "0.1.0"

#: Public name -> its module, which is imported on first access.
_LAZY_MODULES = {
    "AlignmentClient": "kubealign.client.sync_client",
    "AlignmentJob": "kubealign.spec.job",
    "AlignmentJobSpec": "kubealign.spec.job",
    "AlignmentJobStatus": "kubealign.spec.status",
    "Algorithm": "kubealign.spec.algorithms",
    "AsyncAlignmentClient": "kubealign.client.async_client",
    "AsyncJob": "kubealign.client.job",
    "Checkpoint": "kubealign.spec.sections.lifecycle",
    "Critic": "kubealign.spec.job",
    "Data": "kubealign.spec.sections.data",
    "Job": "kubealign.client.job",
    "JobPhase": "kubealign.spec.status",
    "Lifecycle": "kubealign.spec.sections.lifecycle",
    "Metadata": "kubealign.spec.job",
    "MetricsTable": "kubealign.client.metrics_table",
    "Model": "kubealign.spec.sections.models",
    "Policy": "kubealign.spec.sections.models",
    "Reference": "kubealign.spec.job",
    "Result": "kubealign.client.results.model_loader",
    "Reward": "kubealign.spec.sections.rewards",
    "Rollout": "kubealign.spec.sections.rollout",
    "Trainer": "kubealign.spec.sections.training",
    "Validation": "kubealign.spec.sections.validation",
    "load_jobs": "kubealign.spec.loading.loader",
    "reward_function": "kubealign.client.python_inputs",
    "store_model": "kubealign.client.python_inputs",
    "store_rows": "kubealign.client.python_inputs",
}

__all__ = [
    "Algorithm",
    "AlignmentClient",
    "AlignmentJob",
    "AlignmentJobSpec",
    "AlignmentJobStatus",
    "AsyncAlignmentClient",
    "AsyncJob",
    "Checkpoint",
    "Critic",
    "Data",
    "Job",
    "JobPhase",
    "Lifecycle",
    "Metadata",
    "MetricsTable",
    "Model",
    "Policy",
    "Reference",
    "Result",
    "Reward",
    "Rollout",
    "Trainer",
    "Validation",
    "__version__",
    "errors",
    "load_jobs",
    "reward_function",
    "store_model",
    "store_rows",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        value: Any = import_module("kubealign.errors")
    elif name in _LAZY_MODULES:
        value = getattr(import_module(_LAZY_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'kubealign' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
