"""Driver-side clients of trainer and critic: typed calls, each with a deadline."""

from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from torch import Tensor

from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.batch.codec import decode_columns, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.state import JobState
from kubealign_services.runtime.rpc.client import Peer


class TrainingClient:
    """Calls that trainer and critic share. `timeout` is the deadline of computing calls in seconds."""

    def __init__(self, peer: Peer, fence: int, timeout: float) -> None:
        self.role = peer.name
        self.fence = fence
        self._peer = peer
        self._timeout = timeout

    async def describe(self) -> training_pb2.TrainingState:
        """Return the role's training state. Waits for a running command."""
        request = training_pb2.DescribeRequest(fence=self.fence)
        reply: training_pb2.TrainingState = await self._call("Describe", request)
        return reply

    async def load(self, state: JobState, directory: Path | None) -> None:
        """Load the initial weights (None) or those of a checkpoint."""
        request = training_pb2.LoadRequest(
            fence=self.fence,
            directory=str(directory or ""),
            step=state.step,
            driver_state=state.model_dump_json().encode(),
        )
        await self._call("Load", request)

    async def train_step(self, batch: Batch, after: JobState, update: bool) -> dict[str, float]:
        """Run step `after.step`. Return the step's metrics; empty if nothing was updated."""
        request = training_pb2.TrainStepRequest(
            fence=self.fence,
            step=after.step,
            batch=encode(batch),
            update=update,
            driver_state=after.model_dump_json().encode(),
        )
        reply = await self._call("TrainStep", request)
        return dict(reply.metrics.values)

    async def save(self, step: int, directory: Path) -> list[training_pb2.Shard]:
        """Write this role's shards into an existing folder."""
        request = training_pb2.SaveRequest(fence=self.fence, step=step, directory=str(directory))
        reply = await self._call("Save", request)
        return list(reply.shards)

    async def _call(self, method: str, request: Message) -> Any:
        return await self._peer.call(method, request, self._timeout)

    async def _forward_columns(
        self, method: str, batch: Batch, outputs: list[str], keep_graph: bool = False
    ) -> dict[str, Tensor]:
        request = training_pb2.ForwardRequest(
            fence=self.fence, batch=encode(batch), outputs=outputs, learned=keep_graph
        )
        reply = await self._call(method, request)
        return decode_columns(reply.columns, reply.digest)


class TrainerClient(TrainingClient):
    """Client of the policy's trainer."""

    async def logprobs(self, batch: Batch, keep_graph: bool = False) -> Tensor:
        """Return the policy's log-probabilities of the tokens, float32 [T].

        Args:
            keep_graph: The next update trains on these sequences, so the forward pass may be kept.
        """
        columns = await self._forward_columns("Logprobs", batch, ["logprobs"], keep_graph)
        return columns["token.logprobs"]

    async def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probabilities of the reference that the trainer hosts, float32 [T]."""
        columns = await self._forward_columns("ReferenceLogprobs", batch, ["logprobs"])
        return columns["token.logprobs"]

    async def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return the mean loss and the metrics of a batch."""
        request = training_pb2.EvaluateRequest(fence=self.fence, batch=encode(batch))
        reply = await self._call("Evaluate", request)
        return dict(reply.metrics.values)

    async def export(self, step: int, directory: Path) -> None:
        """Write the model as a Hugging Face folder."""
        request = training_pb2.ExportRequest(fence=self.fence, step=step, directory=str(directory))
        await self._call("Export", request)

    async def publish_weights(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        """Take a snapshot of the weights for workers to fetch."""
        request = refit_pb2.PublishWeightsRequest(fence=fence, version=version)
        reply: refit_pb2.WeightsAnnouncement = await self._call("PublishWeights", request)
        return reply


class CriticClient(TrainingClient):
    """Client of the critic."""

    async def values(self, batch: Batch) -> Tensor:
        """Return the value of the state before each token, float32 [T]. The next update trains on these
        sequences.
        """
        columns = await self._forward_columns("Values", batch, ["values"], keep_graph=True)
        return columns["token.values"]

    async def scores(self, batch: Batch, names: list[str]) -> dict[str, Tensor]:
        """Return the scores of the critic's reward models by name, each float32 [S]."""
        columns = await self._forward_columns("Score", batch, names)
        return {name: columns[f"sequence.{name}"] for name in names}
