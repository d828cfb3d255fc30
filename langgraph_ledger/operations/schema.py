"""Creating the tables and bringing them up to date, safely from many processes at once."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_ledger.errors import InvalidInput, SchemaMissing, SchemaTooNew
from langgraph_ledger.records import now
from langgraph_ledger.statements import Access, Migration, Operation, Statement, Steps, batch


def check_schema(migrations: Sequence[Migration], partitions: int | None = None) -> Operation[bool]:
    """Whether every migration has been applied. Raises if the tables are newer than this package, or if they are there
    and have not as many partitions as are asked for."""

    def steps() -> Steps[bool]:
        ((found,),) = ((yield batch(Statement("find_migrations"))),)
        if not found:
            return False
        applied, count = yield batch(Statement("read_migrations"), Statement("count_partitions"), last=True)
        missing = _missing(applied, migrations)
        _check_partitions(applied, count[0][0], partitions)
        return missing == ()

    return Operation("check_schema", Access.READ, steps)


def create_schema(migrations: Sequence[Migration], partitions: int | None = None) -> Operation[int]:
    """Applies what is missing, in one transaction and under a lock; returns how many migrations that were."""

    def steps() -> Steps[int]:
        yield batch(Statement("lock_schema"), Statement("create_schema"), Statement("create_migrations"))
        applied, count = yield batch(Statement("read_migrations"), Statement("count_partitions"))
        _check_partitions(applied, count[0][0], partitions)
        missing = _missing(applied, migrations)
        for migration in missing:
            yield batch(
                *(Statement(name) for name in migration.statements),
                Statement("record_migration", {"number": migration.number, "name": migration.name, "now": now()}),
            )
        return len(missing)

    return Operation("create_schema", Access.WRITE, steps)


def missing_schema(where: str) -> SchemaMissing:
    """The error of a read-only saver that finds no tables."""
    return SchemaMissing(f"{where} holds no ledger (or an older one), and read_only=True may not create it")


def _check_partitions(applied: Sequence[tuple[int, str]], found: int, wanted: int | None) -> None:
    if applied and wanted is not None and found != wanted:
        made = f"{found} partitions" if found else "no partitions"
        raise InvalidInput(
            f"partitions={wanted}: the tables are there already, and were made with {made}. That is decided when they"
            " are made: leave the option out, or move the threads to tables in another schema"
        )


def _missing(applied: Sequence[tuple[int, str]], migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    done = {number for number, _ in applied}
    if newer := done - {m.number for m in migrations}:
        raise SchemaTooNew(
            f"the database has migration {max(newer)}, this package knows up to"
            f" {max(m.number for m in migrations)}: upgrade langgraph-checkpoint-ledger"
        )
    return tuple(m for m in migrations if m.number not in done)
