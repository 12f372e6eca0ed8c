"""Softmax temperature of each sequence of a batch.

Log-probabilities of a sequence are those of softmax(logits / temperature). Where all sequences share one
temperature the batch has the scalar `temperature`, as batches of given rows and recorded batches of earlier
versions do; otherwise it has the sequence column `temperature`, which takes precedence over the scalar. A
batch with neither has temperature 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.packed import Batch

#: Name of the scalar and of the sequence column, float64 [S].
TEMPERATURE = "temperature"


def rollout_temperature(rollout: rollout_pb2.Rollout, default: float) -> float:
    """Return the temperature that a rollout states, or `default` for one of an earlier version."""
    return rollout.temperature if rollout.HasField("temperature") else default


def sequence_temperatures(batch: Batch) -> Tensor:
    """Return the temperature of each sequence, float64 [S]."""
    column = batch.sequence_columns.get(TEMPERATURE)
    if column is not None:
        return column.double()
    return torch.full((len(batch),), batch.scalars.get(TEMPERATURE, 1.0), dtype=torch.float64)


def set_temperatures(batch: Batch, temperatures: Sequence[float]) -> None:
    """Write one temperature per sequence: as the scalar where all are equal, as the column otherwise.

    Raises ValueError when there are more or fewer temperatures than sequences.
    """
    if len(temperatures) != len(batch):
        raise ValueError(f"{len(temperatures)} temperatures for {len(batch)} sequences")
    batch.scalars.pop(TEMPERATURE, None)
    batch.sequence_columns.pop(TEMPERATURE, None)
    if len(set(temperatures)) == 1:
        batch.scalars[TEMPERATURE] = float(temperatures[0])
    elif temperatures:
        batch.sequence_columns[TEMPERATURE] = torch.tensor(temperatures, dtype=torch.float64)
