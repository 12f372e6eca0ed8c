"""Ages of messages under clocks that differ."""

import pytest

from kubealign_services.messaging.message_age import MessageAges


@pytest.mark.parametrize("skew", [-86_400.0, 0.0, 1e9])
def test_ages_do_not_depend_on_the_clocks(skew: float) -> None:
    ages = MessageAges()
    # The first message sets the difference of the clocks, with its latency of 0.25 s.
    assert ages.age(100.0 + skew, 100.25) == 0.0
    assert ages.age(90.0 + skew, 101.25) == 11.0
    assert ages.age(102.0 + skew, 102.25) == 0.0


def test_an_age_is_never_too_large() -> None:
    """Check a process that starts with a message that waited for a minute."""
    ages = MessageAges()
    assert ages.age(40.0, 100.0) == 0.0
    assert ages.age(100.0, 101.0) == 0.0
    assert ages.age(41.0, 101.0) == 59.0
