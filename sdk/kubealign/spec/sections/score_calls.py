"""Sources of scores that are called for each sample: properties of rewards and validation scores."""

from enum import StrEnum

from kubealign.spec.base import field_errors
from kubealign.spec.sections.reward_servers import HttpReward, JudgeReward
from kubealign.spec.sections.verifiers import Verifier

#: Calls in flight of a score of another server, where the spec states none.
_SERVER_CONCURRENCY = 8


class RewardErrorPolicy(StrEnum):
    """Retry: the prompt is sampled again, and replaced after its last retry.

    Zero: the reward of the sample is 0. Skip: the reward does not apply to the sample. Fail: the job fails.
    """

    RETRY = "Retry"
    ZERO = "Zero"
    SKIP = "Skip"
    FAIL = "Fail"


class ScoreScope(StrEnum):
    """Sample: a call has any of the responses that wait, each of which is scored by itself.

    Group: a call has all responses to one prompt.
    """

    SAMPLE = "Sample"
    GROUP = "Group"


class ScoreCalls:
    """Properties of an entry whose source may be a function, a verifier, or another server.

    name: name of the entry.
    """

    name: str
    verifier: Verifier | None
    http: HttpReward | None
    judge: JudgeReward | None
    concurrency: int | None
    timeout_seconds: float
    on_error: RewardErrorPolicy | None
    scope: ScoreScope

    @property
    def scores_groups(self) -> bool:
        """True where a call has all responses to one prompt."""
        return self.scope is ScoreScope.GROUP

    @property
    def calls_a_server(self) -> bool:
        """True where another server gives the score."""
        return self.http is not None or self.judge is not None

    @property
    def calls_in_flight(self) -> int:
        """Number of concurrent calls of each replica."""
        return self.concurrency or (_SERVER_CONCURRENCY if self.calls_a_server else 1)

    @property
    def error_policy(self) -> RewardErrorPolicy:
        """Effect of a sample without a score."""
        return self.on_error or (RewardErrorPolicy.SKIP if self.calls_a_server else RewardErrorPolicy.RETRY)

    def check_code_time(self, title: str) -> None:
        """Check that a verifier of programs ends before it is stopped. Raises ValidationError of `title`."""
        code = None if self.verifier is None else self.verifier.code
        if code is not None and code.seconds_per_response >= self.timeout_seconds:
            remedy = (
                f"must be below timeoutSeconds, {self.timeout_seconds:g}: lower it, or raise timeoutSeconds"
            )
            path = ("verifier", "code", "secondsPerResponse")
            raise field_errors(title, (path, code.seconds_per_response, remedy))

    def named_columns(self) -> dict[str, str]:
        """Return field -> column of the data set that the source needs."""
        if self.verifier is not None:
            return {f"verifier.{field}": column for field, column in self.verifier.named_columns().items()}
        if self.judge is not None:
            columns = self.judge.task.named_columns()
            return {f"judge.task.{field}": column for field, column in columns.items()}
        return {}
