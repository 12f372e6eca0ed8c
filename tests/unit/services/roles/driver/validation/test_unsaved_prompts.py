"""Prompts of a measurement that continues: those that are not saved, in order."""

from typing import Any

from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.validation.sampling import UnsavedPrompts


async def test_saved_prompts_are_not_requested_again() -> None:
    rows: Any = [PreparedRow(row=number, prompt_tokens=[1], prompt_text=str(number)) for number in range(5)]
    prompts = UnsavedPrompts(rows, "val@20", {"val@20/0", "val@20/1", "val@20/3"})
    names = [await prompts.next_prompt() for _ in range(4)]
    assert names == ["val@20/2", "val@20/4", None, None]
    assert prompts.row("val@20/4") is rows[4]
