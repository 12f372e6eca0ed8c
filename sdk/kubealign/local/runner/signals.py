"""Handling of Ctrl-C and SIGTERM: the first signal requests an orderly stop, the second an immediate one."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interruption:
    """Stop requests. `stop_requested` is set by the first signal, `force_requested` by the second."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        self.force_requested = asyncio.Event()

    def request_stop(self) -> None:
        (self.force_requested if self.stop_requested.is_set() else self.stop_requested).set()

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Route the signals of this process to this object while the context is open."""
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        # nohup ignores SIGHUP: the run is meant to outlive the terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
