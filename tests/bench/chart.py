"""Charts measured values relative to their aims, as SVG. Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_PLOT, _NUMBERS = 380, 150
#: Maximum average width of a label's character in pixels: fonts differ.
_CHARACTER = 7
_ROW, _BAR, _TOP, _BOTTOM = 26, 14, 46, 34
#: Blue and orange that the colour-blind can tell apart, grey that reads on white and on black.
_MET, _MISSED, _INK, _FAINT = "#2f6fb0", "#c7691a", "#7a7a7a", "#b8b8b8"


@dataclass(frozen=True)
class Bar:
    """One bar of the chart.

    label: the measured metric. text: the formatted value and aim. score: factor by which the value is better
    than the aim; 1: the aim is just met."""

    label: str
    text: str
    score: float


def chart(bars: Sequence[Bar], title: str) -> str:
    """Return an SVG document with one bar per aim on a logarithmic scale: to the right of the aim's line if
    the aim is met, to the left if it is missed. Raises ValueError for a score that is not above 0."""
    if any(bar.score <= 0 for bar in bars):
        raise ValueError(f"scores must be above 0: {[bar.score for bar in bars]}")
    low, high = _range([bar.score for bar in bars])
    labels = _CHARACTER * max((len(bar.label) for bar in bars), default=0) + 8
    width = labels + _PLOT + _NUMBERS
    height = _TOP + _ROW * len(bars) + _BOTTOM

    def x(score: float) -> float:
        return labels + _PLOT * (math.log2(score) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="16" font-size="14">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        line_x = x(2.0**power)
        stroke = f'stroke="{_INK}" stroke-width="1.5"' if power == 0 else f'stroke="{_FAINT}"'
        parts.append(
            f'<line x1="{line_x:.1f}" x2="{line_x:.1f}" y1="{_TOP - 8}" y2="{height - _BOTTOM}" {stroke}/>'
        )
        caption = "the aim" if power == 0 else f"{2.0**power:g} x"
        parts.append(f'<text x="{line_x:.1f}" y="{height - 14}" text-anchor="middle">{caption}</text>')
    for row, bar in enumerate(bars):
        top = _TOP + _ROW * row
        begin, end = sorted((x(1.0), x(bar.score)))
        colour = _MET if bar.score >= 1 else _MISSED
        middle = top + _BAR - 3
        parts.append(f'<text x="{labels - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(
            f'<rect x="{begin:.1f}" y="{top}" width="{max(2.0, end - begin):.1f}" height="{_BAR}" '
            f'fill="{colour}"/>'
        )
        parts.append(f'<text x="{labels + _PLOT + 8}" y="{middle}">{escape(bar.text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _range(scores: Sequence[float]) -> tuple[int, int]:
    """Return the exponents of two that enclose all scores, and at least half and twice the aim."""
    logs = [math.log2(score) for score in scores]
    return min(-1, *map(math.floor, [*logs, -1.0])), max(1, *map(math.ceil, [*logs, 1.0]))
