"""Decodes messages of the bus; settles those that cannot be decoded, which would come back for ever."""

import logging
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError

from kubealign_services.messaging.contract import Bus, Delivery

M = TypeVar("M")

log = logging.getLogger(__name__)


async def decode_or_reject(delivery: Delivery, subject: str, decode: Callable[[bytes], M]) -> M | None:
    """Return the message of a delivery; reject a delivery that cannot be decoded and return None.

    Args:
        decode: Raises DecodeError.
    """
    try:
        return decode(delivery.data)
    except DecodeError as error:
        _log(subject, delivery.data, error)
        await delivery.reject()
        return None


def decode_latest(bus: Bus, subject: str, data: bytes, decode: Callable[[bytes], M]) -> M | None:
    """Return a message of `bus.latest`; None for one that cannot be decoded.

    Args:
        decode: Raises DecodeError.
    """
    try:
        return decode(data)
    except DecodeError as error:
        _log(subject, data, error)
        bus.count_rejected(subject)
        return None


def _log(subject: str, data: bytes, error: DecodeError) -> None:
    log.error(
        "rejected a message that cannot be decoded",
        extra={"subject": subject, "size_bytes": len(data), "cause": str(error)},
    )
