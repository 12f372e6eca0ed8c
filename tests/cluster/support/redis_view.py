"""Contents of the platform's Redis, queried in its own pod with the operator's login."""

import base64
import json
from dataclasses import dataclass

from .helm import NAMESPACE, RELEASE
from .kubectl import Kubectl

_SECRET = f"{RELEASE}-redis"
_POD = f"{RELEASE}-redis-0"
# The server's certificate names the Service, not localhost, so it is not verified.
_PROGRAM = """
import json, sys
from redis import Redis
asked = json.load(sys.stdin)
settings = {"ssl": True, "ssl_cert_reqs": "none"} if asked["tls"] else {}
redis = Redis(username="operator", password=asked["password"], decode_responses=True, **settings)
print(json.dumps({"users": redis.acl_users(), "keys": sorted(redis.scan_iter("kubealign:*"))}))
"""


@dataclass(frozen=True)
class RedisView:
    """Users and keys of jobs in Redis."""

    users: tuple[str, ...]
    keys: tuple[str, ...]


def look(kubectl: Kubectl) -> RedisView:
    """Return the current users and keys of jobs. Raises KubectlFailed where Redis does not answer."""
    secret = json.loads(kubectl("get", "secret", _SECRET, "-n", NAMESPACE, "-o", "json"))["data"]
    password = base64.b64decode(secret["operator-password"]).decode()
    asked = json.dumps({"password": password, "tls": "tls.crt" in secret})
    response = json.loads(
        kubectl("exec", "-i", "-n", NAMESPACE, _POD, "--", "python", "-c", _PROGRAM, stdin=asked)
    )
    users = tuple(user for user in response["users"] if user.startswith("kubealign-"))
    return RedisView(users, tuple(response["keys"]))
