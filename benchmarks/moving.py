"""Move the threads of an official saver into a ledger, compare every state, and answer each question on both sides.

    python -m benchmarks.moving                    500 threads from SqliteSaver into a ledger on SQLite
    python -m benchmarks.moving --postgres         from PostgresSaver into a ledger on Postgres, a server from the wheel
    python -m benchmarks.moving --postgres URL     the same on a server where databases may be created
    python -m benchmarks.moving --threads 12       fewer: to see that it works

Threads are conversations of a few turns: plain ones, with forks, subgraphs of one call each, two calls of a subgraph in
one node, a subgraph with a memory of its own, a delta channel. Each waits for an answer in the end. They are moved by
`lgledger import`. Anything that is not as it was ends the program.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, interrupt

from benchmarks.corpus import Text
from benchmarks.harness import TOTAL_SIZE, ask, thread
from langgraph_ledger import LedgerSaver

TURNS = 4
QUESTION = 1_500
"""Characters of a question, about."""


class DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class Work(TypedDict):
    messages: list[AnyMessage]
    notes: list[str]


# --- graphs: `reply` says something, `approve` asks whether that is all right


def reply(state: Any) -> Any:
    """Answers the last message with as much text, turned round."""
    last = state["messages"][-1]
    return {"messages": [AIMessage(last.content[::-1], id=f"{last.id}-reply")]}


def approve(state: Any) -> Any:
    number = len(state["messages"])
    return {"messages": [HumanMessage(f"approved: {interrupt(f'is {number} all right?')}", id=f"approval-{number}")]}


def plain(saver: Any, state: Any = MessagesState) -> Any:
    return StateGraph(state).add_sequence([reply, approve]).add_edge(START, "reply").compile(checkpointer=saver)


def delta(saver: Any) -> Any:
    return plain(saver, DeltaMessages)


def nested(saver: Any) -> Any:
    """Replies and asks in a subgraph."""
    builder = StateGraph(MessagesState).add_node("inner", plain(None))
    return builder.add_edge(START, "inner").compile(checkpointer=saver)


def twice(saver: Any) -> Any:
    """Calls a subgraph twice in one node, before it replies and asks."""
    noting = _noting(None)

    def note(state: Any) -> Any:
        for _ in range(2):
            noting.invoke({"messages": state["messages"], "notes": []})
        return {}

    return _noting_first(note, saver)


def remembering(saver: Any) -> Any:
    """A subgraph that keeps its notes from turn to turn."""
    return _noting_first(_noting(True), saver)


def _noting(saver: Any) -> Any:
    def write(state: Work) -> Any:
        return {"notes": [*state.get("notes", []), state["messages"][-1].content[:200]]}

    return StateGraph(Work).add_node("write", write).add_edge(START, "write").compile(checkpointer=saver)


def _noting_first(node: Any, saver: Any) -> Any:
    builder = StateGraph(MessagesState).add_node("note", node).add_node("reply", reply).add_node("approve", approve)
    builder.add_edge(START, "note").add_edge("note", "reply").add_edge("reply", "approve")
    return builder.compile(checkpointer=saver)


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "plain": plain,
    "forked": plain,
    "nested": nested,
    "called twice": twice,
    "remembering": remembering,
    "delta": delta,
}


def kind_of(number: int) -> str:
    return list(GRAPHS)[number % len(GRAPHS)]


# --- threads


def make(saver: Any, threads: int) -> None:
    """The threads of the source; the last turn of each waits for its answer."""
    text = Text(seed=23)
    graphs = {kind: graph_of(saver) for kind, graph_of in GRAPHS.items()}
    for number in range(threads):
        graph, config = graphs[kind_of(number)], thread(str(number))
        for turn in range(TURNS):
            if turn:
                graph.invoke(Command(resume="yes"), config)
            graph.invoke({"messages": [HumanMessage(text.question(QUESTION), id=text.uuid())]}, config)
        if kind_of(number) == "forked":
            before = next(s for s in graph.get_state_history(config) if s.next == ("reply",))
            changed = HumanMessage("on second thoughts: " + text.prose(200), id=before.values["messages"][-1].id)
            graph.invoke(None, graph.update_state(before.config, {"messages": [changed]}))


def compare(source: Any, target: Any, threads: int) -> dict[str, int]:
    """Every state of every thread on both sides, then the answer to each question, there and here."""
    seen = dict.fromkeys(("threads", "states", "questions answered alike"), 0)
    graphs = {kind: (graph_of(source), graph_of(target)) for kind, graph_of in GRAPHS.items()}
    for number in range(threads):
        pair, config = graphs[kind_of(number)], thread(str(number))
        here, there = ([shown(state) for state in graph.get_state_history(config)] for graph in pair)
        expect(here == there, f"the states of thread {number}")
        asked = [[question.value for question in graph.get_state(config).interrupts] for graph in pair]
        expect(asked[0] == asked[1] and len(asked[0]) == 1, f"the question of thread {number}")
        ended = [graph.invoke(Command(resume="yes"), config) for graph in pair]
        expect(ended[0] == ended[1] and "__interrupt__" not in ended[0], f"the end of thread {number}")
        seen["threads"] += 1
        seen["states"] += len(here)
        seen["questions answered alike"] += 1
    return seen


def shown(state: Any) -> Any:
    tasks = [(task.id, task.name, task.path, [found.value for found in task.interrupts]) for task in state.tasks]
    return state.values, state.next, state.config, state.parent_config, state.metadata, tasks


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"not as it was: {what}")


# --- databases


def opened(place: str) -> AbstractContextManager[Any]:
    """The official saver of a file or a URL."""
    if "://" in place:
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(place)
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(place)


def size(place: str) -> int:
    """Bytes of the tables with their indexes, or of the file; it is closed by now."""
    if "://" not in place:
        return sum(path.stat().st_size for path in Path(place).parent.glob(Path(place).name + "*"))
    import psycopg

    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("VACUUM")
        return int(ask(connection, TOTAL_SIZE))


def places(stack: ExitStack, postgres: str | None) -> Sequence[str]:
    """Two empty places, to move from and to."""
    if postgres is None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledger-moving-")))
        return str(folder / "official.db"), str(folder / "ledger.db")
    from tests.postgres_server import create_database, drop_database, own_server

    server = postgres or stack.enter_context(own_server())
    urls = create_database(server), create_database(server)
    for url in urls:
        stack.callback(drop_database, server, url)
    return urls


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.moving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=500, metavar="N", help="%(default)s unless given")
    parser.add_argument("--postgres", nargs="?", const="", metavar="URL", help="on Postgres")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        source, target = places(stack, arguments.postgres)
        with opened(source) as saver:
            saver.setup()
            make(saver, arguments.threads)
        before, start = size(source), time.perf_counter()
        command = [sys.executable, "-m", "langgraph_ledger", "import", "--from", source, "--url", target, "--json"]
        moved = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        took, after = time.perf_counter() - start, size(target)
        expect(moved["threads"] == arguments.threads, "the number of threads")
        with opened(source) as saver, LedgerSaver(target) as ledger:
            found = compare(saver, ledger, arguments.threads)
    print(f"{moved['checkpoints']} checkpoints and {moved['pending_writes']} pending writes moved in {took:.1f} s")
    print(", ".join(f"{count} {name}" for name, count in found.items()))
    print(f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after: {after / before:.3f} of it")


if __name__ == "__main__":
    main()
