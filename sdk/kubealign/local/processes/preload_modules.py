"""Modules that the fork server preloads for jobs: torch, transformers architectures, role modules."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from kubealign.roles import roles
from kubealign.spec.dependencies import named_models
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.models import Model

_LIBRARIES = ("torch", "grpc.aio", "grpc_health.v1.health", "nats", "redis.asyncio")
_TRANSFORMERS = (
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)

#: Module of a rollout worker that brings kubealign's own engine; workers with other engines do not import it.
_TORCH_ENGINE = "kubealign_services.roles.rollout.torch_generator"


def modules_to_preload(jobs: Iterable[AlignmentJob]) -> list[str]:
    """Return the import names, heavy libraries first.

    Neither peft nor bitsandbytes, which peft imports: it asks CUDA for the devices, after which forked
    processes cannot use them.
    """
    jobs = list(jobs)
    types = dict.fromkeys(
        kind for job in jobs for _, model in named_models(job) for kind in _model_types(model)
    )
    own = [f"transformers.models.{kind}.modeling_{kind}" for kind in types]
    main = dict.fromkeys(process.module for job in jobs for process in roles(job))
    rollouts = (job.spec.effective_rollout for job in jobs)
    has_torch_engine = any(rollout is not None and rollout.engine.torch is not None for rollout in rollouts)
    return [*_LIBRARIES, *_TRANSFORMERS, *own, *main, *([_TORCH_ENGINE] if has_torch_engine else [])]


def _model_types(model: Model) -> Iterator[str]:
    """Yield the transformers model type, where it is known without network access."""
    if model.config is not None:
        kind = model.config.architecture.get("model_type")
    elif model.path is not None:
        kind = _declared_model_type(Path(model.path) / "config.json")
    else:
        kind = None
    if isinstance(kind, str) and kind.isidentifier():
        yield kind


def _declared_model_type(config: Path) -> object:
    try:
        document = json.loads(config.read_text())
    except (OSError, ValueError):
        # The process that loads the model reports the error.
        return None
    return document.get("model_type") if isinstance(document, dict) else None
