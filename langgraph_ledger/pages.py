"""One call of `list`: its arguments checked at once, its pages fetched one by one and each whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_ledger import working
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.flow import Flow
from langgraph_ledger.ledger import Ledger
from langgraph_ledger.reading import PAGE, decode, list_query, matching, read_page
from langgraph_ledger.shelf import Shelf


def checked_limit(limit: Any) -> int:
    """A number of items to return at most, or `InvalidInput`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInput(f"limit={limit!r}: expected a number of items, zero or more")
    return min(limit, 2**31)  # no database has more, and not every one can be told a larger number


class Pages:
    """What is left to be listed."""

    def __init__(
        self, ledger: Ledger, serde: SerializerProtocol, config: Any, filter: Any, before: Any, limit: int | None
    ) -> None:
        if filter is not None and not isinstance(filter, Mapping):
            raise InvalidInput(f"filter must be a mapping of metadata keys to values: {filter!r:.80}")
        self.left = None if limit is None else checked_limit(limit)
        self.ledger, self.serde, self.config, self.filter = ledger, serde, config, filter
        self.query = list_query(config, filter, before, not isinstance(serde, EncryptedSerializer))
        self.ended = self.left == 0

    def next(self) -> Flow[list[CheckpointTuple]]:
        """The next page's matching checkpoints."""
        size = PAGE if self.left is None or self.filter else min(self.left, PAGE)
        vault = yield from self.ledger.vault(self.serde)
        page, run = yield from read_page(self.ledger, self.config, self.query, size)
        self.query = page.following
        self.ended = len(page.checkpoints) < size or self.query.checkpoint_id is not None
        found = []
        kept: dict[str, Any] = {}
        shelves: dict[str, Shelf] = {}
        for stored in page.checkpoints:
            shelf = shelves.setdefault(stored.session_id, Shelf(vault, stored.session_id, stored.memory))
            if stored.session_id not in kept:
                kept[stored.session_id] = yield from working.fetch(self.ledger, stored.session_id)
            stored.working = kept[stored.session_id]
            item = decode(self.ledger, vault, stored, run, shelf)
            if matching(item, self.filter):
                found.append(item)
                if self.left is not None:
                    self.left -= 1
                    if self.left == 0:
                        self.ended = True
                        break
        return found
