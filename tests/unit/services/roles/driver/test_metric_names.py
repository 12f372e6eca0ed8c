"""Names of a step's training metrics."""

from itertools import permutations

import pytest

from kubealign_services.roles.driver.trainer_client import prefix_metrics

FIGURES = {"loss": 0.25, "critic/loss": 0.5, "gradient_norm": 2.0}


@pytest.mark.parametrize("order", list(permutations(FIGURES)))
def test_the_objectives_metric_names_win_in_any_order(order: tuple[str, ...]) -> None:
    figures = {name: FIGURES[name] for name in order}
    assert prefix_metrics(figures, "critic") == {"critic/loss": 0.5, "critic/gradient_norm": 2.0}
    assert prefix_metrics(figures, "trainer") == {
        "trainer/loss": 0.25,
        "critic/loss": 0.5,
        "trainer/gradient_norm": 2.0,
    }
