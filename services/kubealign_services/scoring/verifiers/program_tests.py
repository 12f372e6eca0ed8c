"""Programs as responses: each runs the tests of its row in sandboxes of this machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.programs import ProgramRunner
from kubealign_services.scoring.verifiers.program_rows import ProgramRows, reward_of_verdicts


class ProgramTests:
    """1 for a response whose program passes all tests of its row, else 0, or the share that it passes."""

    def __init__(self, spec: CodeVerifier) -> None:
        """Raises SandboxUnavailable where this machine cannot isolate programs."""
        self._spec = spec
        self._rows = ProgramRows(spec)
        self._runner = ProgramRunner(spec.parallel_tests)
        self._limits = Limits(
            seconds=spec.seconds_per_test,
            memory_bytes=spec.memory_mib << 20,
            output_bytes=spec.output_bytes,
            processes=spec.processes,
        )

    def score_all(self, responses: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[RewardResult]:
        """Return one result per response; parallelTests of their tests run at once.

        Raises UnusableRow where the tests of a row cannot be used, before any runs, and SandboxFailed.
        """
        programs = [self._rows.read(response, row) for response, row in zip(responses, rows, strict=True)]
        runs = [
            None
            if program is None or program.is_empty
            else self._runner.start(program, self._limits, self._spec.seconds_per_response)
            for program in programs
        ]
        try:
            results = []
            for program, run in zip(programs, runs, strict=True):
                verdicts = [] if run is None else [future.result() for future in run.verdicts]
                seconds = 0.0 if run is None else run.seconds
                results.append(reward_of_verdicts(program, verdicts, seconds, self._spec.partial))
            return results
        finally:
            for run in runs:
                if run is not None:
                    run.cancel()
