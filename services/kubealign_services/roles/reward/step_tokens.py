"""Steps of a rollout's response, and the tokens of its sequence with which they end."""

from dataclasses import dataclass
from functools import partial

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.tokenization.tokenizers import decode_ids
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.response_steps import Decode, ResponseStep, find_last_tokens, split_steps


@dataclass(frozen=True)
class StepDivision:
    """Separator of steps, and the decoding of the policy's tokens."""

    separator: str
    decode: Decode

    @classmethod
    def load(cls, context: ProcessContext, separator: str) -> "StepDivision":
        """Load the policy's tokenizer. Raises PermanentFailure where the prepared job cannot be read."""
        try:
            tokenizer = load_prepared(context.settings.run_dir).tokenizer
        except DataError as error:
            raise PermanentFailure(str(error)) from error
        return cls(separator, partial(decode_ids, tokenizer))

    def split(self, rollout: rollout_pb2.Rollout) -> list[ResponseStep]:
        """Return the steps of a rollout's response."""
        return split_steps(rollout.response, self.separator)

    def last_tokens(self, rollout: rollout_pb2.Rollout) -> list[int]:
        """Return the index of the last token of each step in the rollout's only sequence.

        Raises ValueError where the tokens are not those of the response's text.
        """
        sequence = decode(rollout.sequence)
        positions = sequence.token("loss_mask").nonzero().squeeze(1).tolist()
        tokens = sequence.tokens[positions].tolist()
        last = find_last_tokens(self.split(rollout), rollout.response, tokens, self.decode)
        return [positions[index] for index in last]
