"""What has to be true of a thread on which two runs have met."""

from typing import Any

from langgraph_ledger import LedgerSaver, LogEntry, StateConflict
from tests.conflicts.stage import Stage
from tests.conflicts.tables import assert_no_orphans
from tests.four_ways import Backend


def log_of(observer: LedgerSaver, stage: Stage) -> list[str]:
    """The log as the database has it."""
    found = observer.get_tuple({"configurable": {"thread_id": stage.thread}})
    return list(found.checkpoint["channel_values"].get("log", [])) if found else []


def judge(
    database: Backend,
    observer: LedgerSaver,
    stage: Stage,
    outcomes: dict[str, Any],
    winner: str | None = None,
    *,
    at: int = 1,
) -> tuple[str, StateConflict]:
    """One run has kept its work, the other was refused and is on record; returns the winner and the refusal.

    `at` is the number of the step whose results were refused: the loser runs no further one, or, under durability
    async, at most one further."""
    refused = {who: outcome for who, outcome in outcomes.items() if isinstance(outcome, BaseException)}
    kept = [who for who in outcomes if who not in refused]
    assert [type(error) for error in refused.values()] == [StateConflict], outcomes
    assert len(kept) == 1
    assert winner in (None, kept[0])
    (conflict,) = refused.values()
    on_record(observer, stage, conflict)
    nothing_lost(database, observer, stage, conflict)
    (loser,) = refused
    if stage.durability != "exit":
        assert len(stage.steps_of(loser)) <= at + (stage.durability == "async"), stage.ran
    return kept[0], conflict


def on_record(observer: LedgerSaver, stage: Stage, conflict: StateConflict) -> list[LogEntry]:
    """The refusal is in the log, with the facts of the error."""
    rows = observer.rejected_writes(stage.thread)
    assert rows
    assert {row.payload["writer"] for row in rows} == {conflict.writer}
    assert {row.payload["accepted"] for row in rows} == {False}
    facts = [
        (row.agent_id, row.payload["operation"], row.payload["version_found"], row.payload["winner"]) for row in rows
    ]
    assert (conflict.agent_id, conflict.operation, conflict.version_found, conflict.winner) in facts
    assert all(row.session_id == stage.thread and row.checkpoint_type == "write_rejected" for row in rows)
    return list(rows)


def nothing_lost(database: Backend, observer: LedgerSaver, stage: Stage, conflict: StateConflict | None) -> None:
    """No stored checkpoint has been written over: all are in one line. No row is left without its fellows."""
    root: Any = {"configurable": {"thread_id": stage.thread, "checkpoint_ns": ""}}
    line = list(observer.ancestors(root))
    assert [found.checkpoint["id"] for found in observer.list(root)] == line
    if conflict is not None and conflict.last_committed is not None:
        assert conflict.last_committed in line
    assert_no_orphans(database, stage.thread)
