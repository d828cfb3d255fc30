"""One round, played and judged."""

from benchmarks.history.judge import violations
from benchmarks.history.play import Played, Round, play
from benchmarks.history.remains import remains_of
from langgraph_ledger import LedgerSaver


def played_and_judged(plan: Round) -> tuple[Played, list[str]]:
    """A round, and what of it does not agree."""
    with LedgerSaver(plan.url) as saver:
        saver.setup()
    played = play(plan)
    remains = remains_of(plan.url, plan.names)
    return played, [*played.failures, *violations(played.events, remains, later=plan.flush != "always")]
