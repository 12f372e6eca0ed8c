"""All lines of the benchmark, in the order of the table."""

from tests.bench.line import Line
from tests.bench.lines import (
    ablation,
    asynchronous,
    generation,
    joining,
    online,
    refit,
    reward_pool,
    rows,
    scaling,
    services,
)

LINES: dict[str, Line] = {
    line.name: line
    for module in (
        online,
        generation,
        rows,
        refit,
        services,
        asynchronous,
        ablation,
        scaling,
        reward_pool,
        joining,
    )
    for line in module.LINES
}
