"""Cancellation: a transaction that has begun is carried through, and only then is the cancellation raised.

Otherwise a cancelled save could commit after its caller was told it did not, in the middle of the next run.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def shielded(future: asyncio.Future[T]) -> T:
    """The future's result; on cancellation waits for the future to end before letting the cancellation through."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # retrieved: the caller asked not to hear of it
        raise cancelled
    return future.result()
