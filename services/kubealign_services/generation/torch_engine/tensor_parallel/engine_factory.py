"""Creates the engine of a rollout worker of several processes: the leader's engine and the other processes'
runners.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.generation.model_folder import read_config
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine, default_device
from kubealign_services.generation.torch_engine.tensor_parallel.commands import CommandReceiver, CommandSender
from kubealign_services.generation.torch_engine.tensor_parallel.leader import LeaderModelRunner, ProcessesLost
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_model import ShardedModel
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_runner import ShardedModelRunner
from kubealign_services.generation.torch_engine.tensor_parallel.sharding import ModelShard
from kubealign_services.training.torch_backend.precision import compute_dtype


def create_leader_engine(
    folder: Path, spec: engine_spec.TorchEngineSpec, store: Store, on_loss: Callable[[ProcessesLost], None]
) -> tuple[TorchRolloutEngine, Callable[[], None]]:
    """Return the leader's engine, and a function that shuts the other processes down.

    The process group must exist.

    Raises the errors of `TorchRolloutEngine.create`, and IndivisibleModel.
    """
    leaders: list[LeaderModelRunner] = []

    def make(config: Any) -> LeaderModelRunner:
        model, runner = _create_runner(config, spec, 0)
        leaders.append(LeaderModelRunner(model, runner, CommandSender(store), on_loss))
        return leaders[0]

    return TorchRolloutEngine.with_runner(folder, spec, make), leaders[0].shut_down


def create_worker_runner(
    folder: Path, spec: engine_spec.TorchEngineSpec, rank: int, store: Store
) -> tuple[CommandReceiver, ShardedModelRunner]:
    """Return the command receiver and the runner of process `rank`.

    Raises UnsupportedEngineModel, IndivisibleModel, OSError.
    """
    return CommandReceiver(store), _create_runner(read_config(folder), spec, rank)[1]


def _create_runner(
    config: Any, spec: engine_spec.TorchEngineSpec, rank: int
) -> tuple[ShardedModel, ShardedModelRunner]:
    shard = ModelShard(rank, spec.tensor_parallel)
    model = ShardedModel(config, compute_dtype(spec.effective_precision), default_device(), shard)
    return model, ShardedModelRunner(model, shard)
