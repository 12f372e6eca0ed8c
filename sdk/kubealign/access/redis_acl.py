"""Commands that the users of Redis may send: those that their clients send, and no others.

Scripting is excluded because a script stops Redis for all, SCAN and KEYS because they show the keys of all
jobs, and blocking commands because they occupy the server's clients.
"""

#: Sent by kubealign_services.telemetry.read_model_writer.
WRITER_COMMANDS = ("ping", "multi", "exec", "hset", "set", "xadd")
#: Sent by kubealign.read_model.
READER_COMMANDS = ("ping", "hmget", "getrange", "xrange", "xrevrange")


def command_rules(*commands: str) -> list[str]:
    """Return the ACL rules that allow these commands only.

    AUTH, HELLO, QUIT and RESET need no permission in Redis.
    """
    return ["-@all", *(f"+{command}" for command in dict.fromkeys(commands))]


def prefix_pattern(prefix: str) -> str:
    """Return the glob pattern of the keys that begin with this text, and of no others."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in prefix) + "*"
