"""Ages of messages, by the timestamps of a bus whose clock may differ from this process's. Pure."""


class MessageAges:
    """Estimates the difference of the clocks from the messages themselves.

    A message arrives later than it was stored, so the smallest difference of arrival and timestamp that was
    seen is the best estimate of the clocks' difference, and never too small. Ages are therefore never too
    large, and exact, but for the latency, once a message has arrived as soon as it was stored.
    """

    def __init__(self) -> None:
        self._offset = float("inf")

    def age(self, stored_at: float, arrived_at: float) -> float:
        """Return the age of a message in seconds.

        Args:
            stored_at: Timestamp of the bus, in seconds.
            arrived_at: time.monotonic() of this process.
        """
        difference = arrived_at - stored_at
        self._offset = min(self._offset, difference)
        return difference - self._offset
