"""Liveness probe of the NATS container: `python -m kubealign_services.messaging.jetstream.nats_probe PORT`.

Asks the server's own health page, because a listening port also belongs to a server that hangs: the kernel
accepts connections for it. Imports the standard library only, as the kubelet runs it every few seconds.
"""

import http.client
import sys
from http import HTTPStatus

_TIMEOUT_SECONDS = 5.0


def main(port: int) -> int:
    """Return 0 if the server is healthy, whatever the state of single streams; 1 otherwise.

    Args:
        port: The server's monitoring port on the loopback interface.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        # https://docs.nats.io/running-a-nats-service/nats_admin/monitoring#health-healthz
        connection.request("GET", "/healthz?js-server-only=true")
        response = connection.getresponse()
        if response.status == HTTPStatus.OK:
            return 0
        sys.stderr.write(f"NATS is not healthy: {response.read(1000)!r}\n")
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"NATS does not answer on its monitoring port {port}: {error}\n")
    finally:
        connection.close()
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
