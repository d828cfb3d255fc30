"""The ledger's secrets: keys of chunk ids, each encrypted with the cipher of the savers that use it."""

from __future__ import annotations

from langgraph_ledger.statements import Access, Operation, Statement, Steps, batch


def read_secrets() -> Operation[list[bytes]]:
    """The encrypted secrets, the oldest first."""

    def steps() -> Steps[list[bytes]]:
        (rows,) = yield batch(Statement("read_secrets"), last=True)
        return [row[0] for row in rows]

    return Operation("read_secrets", Access.READ, steps)


def add_secret(sealed: bytes) -> Operation[None]:
    """Adds one."""

    def steps() -> Steps[None]:
        yield batch(Statement("add_secret", {"secret": sealed}), last=True)

    return Operation("add_secret", Access.WRITE, steps)
