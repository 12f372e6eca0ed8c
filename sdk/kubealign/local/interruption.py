"""Ctrl-C and SIGTERM: the first asks for an orderly stop, the second for an immediate one."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Interruption:
    """`asked` is set by the first signal, `insisted` by the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def interrupt(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """While this is open, signals of this process come here."""
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        # nohup has it ignored: the run is meant to outlive the terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
