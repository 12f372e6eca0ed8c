"""The preStop hook of a trainer, which ends with the driver."""

import socket
import threading

from kubealign_services.runtime.process.wait_for_driver import wait_for_end


def test_it_ends_with_the_driver() -> None:
    with socket.create_server(("127.0.0.1", 0)) as driver:
        port = driver.getsockname()[1]
        ended = threading.Timer(0.2, driver.close)
        ended.start()
        assert wait_for_end("127.0.0.1", port, seconds=30)
        ended.join()


def test_a_driver_that_goes_on_is_waited_for_no_longer_than_the_pod_may() -> None:
    with socket.create_server(("127.0.0.1", 0)) as driver:
        assert not wait_for_end("127.0.0.1", driver.getsockname()[1], seconds=0.6)


def test_a_driver_whose_name_is_unknown_has_ended() -> None:
    assert wait_for_end("driver.invalid", 8081, seconds=30)
