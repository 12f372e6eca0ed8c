r"""Boxes of LaTeX, `\boxed{...}`, in texts. Pure."""

import re

_BOX_START = re.compile(r"\\boxed\s*\{")


def last_box(text: str) -> str | None:
    r"""Return what the last complete `\boxed{}` encloses; None without one."""
    for start in (match.end() for match in reversed(list(_BOX_START.finditer(text)))):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[start:end]
    return None
