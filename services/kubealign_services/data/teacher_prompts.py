"""Hinted prompts of the rows, after which a teacher judges the policy's responses."""

from collections.abc import Sequence
from dataclasses import dataclass

from kubealign_services.batch.packed import Batch
from kubealign_services.batch.replaced_prompts import ReplacedPrompts, replace_prompts
from kubealign_services.data.prepared import PreparedRow, row_index


@dataclass(frozen=True)
class TeacherPrompts:
    """The prompts with their hints, by row."""

    rows: Sequence[PreparedRow]

    def replace(self, batch: Batch) -> ReplacedPrompts:
        """Return the sequences with the prompts that the teacher reads.

        Args:
            batch: Its sample ids name the rows: PASS/ROW or PASS/ROW#SAMPLE.

        Raises:
            PromptMismatch: As `replace_prompts`.
        """
        rows = [self.rows[row_index(name)] for name in batch.sample_ids]
        teacher_prompts = [row.teacher_prompt_tokens or [] for row in rows]
        return replace_prompts(batch, [row.prompt_tokens for row in rows], teacher_prompts)
