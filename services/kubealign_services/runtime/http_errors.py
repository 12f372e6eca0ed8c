"""Messages in the answers of HTTP servers. Pure."""

import json

#: Most characters of a message.
MESSAGE_CHARACTERS = 1000


def read_error_message(content: bytes) -> str:
    """Return the message in the body of an error on one line of at most MESSAGE_CHARACTERS: that of a JSON
    object, in the forms that vLLM and SGLang give it, else the text.
    """
    text = content.decode(errors="replace").strip()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    while isinstance(document, dict):
        document = next((document[key] for key in ("error", "message", "detail") if key in document), None)
    message = " ".join((document if isinstance(document, str) else text).split())
    return message[:MESSAGE_CHARACTERS] or "an empty answer"
