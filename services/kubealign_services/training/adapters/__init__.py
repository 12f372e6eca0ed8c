"""Low-rank adapters: their matrices, targets, and files in PEFT's layout; quantised weights below them."""

import logging

# peft imports bitsandbytes, which warns of an optional inference kernel on some processors; nothing uses it.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
