"""Creates the engine of a rollout worker of several processes: the leader's engine and the other processes'
runners.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from kubealign.spec import engines as engine_spec
from kubealign_services.generation.torch_engine.engine import DTYPES, TorchEngine, own_device
from kubealign_services.generation.torch_engine.model import read_config
from kubealign_services.generation.torch_engine.tensor_parallel.led_passes import LedPasses, ProcessesLost
from kubealign_services.generation.torch_engine.tensor_parallel.model import SlicedModel
from kubealign_services.generation.torch_engine.tensor_parallel.orders import Following, Leading
from kubealign_services.generation.torch_engine.tensor_parallel.sliced_passes import SlicedPasses
from kubealign_services.generation.torch_engine.tensor_parallel.slicing import Shard


def led_engine(
    folder: Path, spec: engine_spec.TorchEngine, store: Store, on_loss: Callable[[ProcessesLost], None]
) -> tuple[TorchEngine, Callable[[], None]]:
    """Return the leader's engine, and a function that shuts the other processes down. The process group must
    exist.

    Raises the errors of `TorchRolloutEngine.create`, and IndivisibleModel.
    """
    led: list[LedPasses] = []

    def make(config: Any) -> LedPasses:
        model, passes = _sliced(config, spec, 0)
        led.append(LedPasses(model, passes, Leading(store), on_loss))
        return led[0]

    return TorchEngine.over(folder, spec, make), led[0].end


def follower_passes(
    folder: Path, spec: engine_spec.TorchEngine, rank: int, store: Store
) -> tuple[Following, SlicedPasses]:
    """Return the command receiver and the runner of process `rank`. Raises UnsupportedEngineModel,
    IndivisibleModel, OSError.
    """
    return Following(store), _sliced(read_config(folder), spec, rank)[1]


def _sliced(config: Any, spec: engine_spec.TorchEngine, rank: int) -> tuple[SlicedModel, SlicedPasses]:
    shard = Shard(rank, spec.tensor_parallel)
    model = SlicedModel(config, DTYPES[spec.precision], own_device(), shard)
    return model, SlicedPasses(model, shard)
