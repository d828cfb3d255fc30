"""What survives a process restart: a report on a compiled graph, made by looking at it; nothing is run or read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.channels import UntrackedValue
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ledger import legible, markup
from langgraph_ledger.errors import InvalidInput
from langgraph_ledger.guard import ReplayGuard
from langgraph_ledger.policies import described_loss
from langgraph_ledger.samples import refused_part, refused_type
from langgraph_ledger.saver import LedgerSaver

DURABLE, LOST, UNTRACKED = "durable", "lost", "untracked"
REFUSED, UNKNOWN, RISK = "not serialisable", "not known", "may happen twice"
CONTEXT = "working context"
WINDOW = "durable, but for the last"

_DURABILITIES = {
    "sync": "each step is saved before the next one begins",
    "async": "each step is saved while the next one runs: at the crash the last one may still be under way",
    "exit": "only the end of a run is saved: a crash costs the whole run",
}
_HIDDEN = ("branch:to:", "join:", "__")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One thing that a graph keeps, or one setting, and what a restart makes of it.

    `kind` is "channel", "subgraph", "store", "cache", "tool", "durability" or "flush". `graph` is the subgraph it
    belongs to, "" for the graph itself. `verdict` is "durable", "durable, but for the last", "working context",
    "untracked", "lost", "not serialisable", "not known" or "may happen twice".
    """

    kind: str
    graph: str
    name: str
    verdict: str
    detail: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The answer to "what survives a process restart?", row by row. `print` it, or show it in a notebook."""

    rows: tuple[AuditRow, ...]

    @property
    def findings(self) -> tuple[AuditRow, ...]:
        """The rows that somebody should look at: all but those that are durable."""
        return tuple(row for row in self.rows if row.verdict != DURABLE)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {"rows": [dataclasses.asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        return legible.table(_HEADER, [_cells(row) for row in self.rows])

    _repr_pretty_ = legible.as_text

    def _repr_html_(self) -> str:
        count = len(self.findings)
        title = "after a restart: " + (f"{count} of {len(self.rows)} need a look" if count else "all is there")
        return markup.page(title, markup.table(_HEADER, map(_marked, self.rows)))


_HEADER = ("what", "name", "after a restart", "why")


def _cells(row: AuditRow) -> tuple[str, ...]:
    cells = (row.kind, f"{row.graph}.{row.name}" if row.graph else row.name, row.verdict, row.detail)
    return tuple(map(legible.line, cells))


def _marked(row: AuditRow) -> list[markup.Cell]:
    mark = {DURABLE: markup.GOOD, LOST: markup.BAD, REFUSED: markup.BAD}.get(row.verdict, markup.WARN)
    kind, name, verdict, detail = _cells(row)
    return [kind, markup.Marked(name, markup.CODE), markup.Marked(verdict, mark), detail]


def audit(graph: Any, *, values: Mapping[str, Any] | None = None, durability: str = "async") -> Audit:
    """What of a compiled graph survives a process restart.

    Args:
        graph: a compiled LangGraph graph.
        values: values as the graph's channels may hold them, by channel, to be tried for real. Without one, the
            declared type of a channel is tried.
        durability: LangGraph's mode that the graph will be run with: "sync", "async" or "exit".

    No node runs, no constructor of yours is called and no database is opened. Raises `InvalidInput` for anything
    that is no compiled graph.
    """
    if not _is_graph(graph):
        raise InvalidInput(f"audit() takes a compiled graph, not a {type(graph).__name__}: call .compile(...) first")
    if durability not in _DURABILITIES:
        raise InvalidInput(f"durability={durability!r}: expected 'sync', 'async' or 'exit'")
    saver = graph.checkpointer if _is_saver(graph.checkpointer) else None
    rows = [*_of_graph("", graph, saver, values or {})]
    for name, subgraph in _subgraphs(graph):
        kept = _saver_of(subgraph, saver)
        rows += [_subgraph(name, subgraph, saver), *_of_graph(name, subgraph, kept, {})]
    return Audit((*rows, *_settings(saver, durability)))


def _is_saver(checkpointer: Any) -> bool:
    return checkpointer is not None and not isinstance(checkpointer, bool)


def _saver_of(subgraph: Any, outer: Any) -> Any:
    if _is_saver(subgraph.checkpointer):
        return subgraph.checkpointer
    return None if subgraph.checkpointer is False else outer


def _of_graph(name: str, graph: Any, saver: Any, values: Mapping[str, Any]) -> Iterator[AuditRow]:
    for channel, kept in graph.channels.items():
        if not channel.startswith(_HIDDEN):
            yield AuditRow("channel", name, channel, *_channel(channel, kept, saver, values))
    if graph.store is not None:
        in_memory = _in_memory(graph.store)
        detail = f"{type(graph.store).__name__}{' keeps everything in this process' * in_memory}"
        yield AuditRow("store", name, "store", LOST if in_memory else UNKNOWN, detail)
    if graph.cache is not None:
        in_memory = _in_memory(graph.cache)
        detail = f"{type(graph.cache).__name__}: its nodes run again" if in_memory else type(graph.cache).__name__
        yield AuditRow("cache", name, "cache", LOST if in_memory else UNKNOWN, detail)
    for tool, guarded in _tools(graph):
        yield AuditRow("tool", name, tool.name, *_tool(tool, guarded))


def _in_memory(part: Any) -> bool:
    """Whether it is one of LangGraph's own that keep everything in this process."""
    from langgraph.cache.memory import InMemoryCache
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.store.memory import InMemoryStore

    return isinstance(part, (InMemoryCache, InMemorySaver, InMemoryStore))


# --- channels


def _channel(name: str, channel: Any, saver: Any, values: Mapping[str, Any]) -> tuple[str, str]:
    kind = type(channel).__name__
    if isinstance(channel, UntrackedValue):
        return UNTRACKED, f"{kind} is never saved: the channel is empty after a restart"
    if saver is None:
        return LOST, "the graph has no checkpointer"
    if _in_memory(saver):
        return LOST, "InMemorySaver keeps everything in this process"
    if isinstance(saver, LedgerSaver) and name in saver._ledger.working_channels:
        return CONTEXT, "its latest value is kept, and may be gone after a crash"
    serde = getattr(saver, "serde", None) or JsonPlusSerializer()
    if name in values:
        refused = refused_part(serde, values[name])
        if refused is not None:
            return REFUSED, f"value{refused[0]}: {refused[1]}"
        return DURABLE, f"{kind}, the value given was tried"
    refused = refused_type(serde, _type_of(channel))
    if refused is None:
        return DURABLE, kind
    path, why = refused
    return (UNKNOWN if why.startswith("cannot be tried") else REFUSED), f"value{path}: {why}"


def _type_of(channel: Any) -> Any:
    try:
        return channel.ValueType
    except Exception:  # a channel of somebody's own need not have one
        return Any


# --- what is around them


def _subgraph(name: str, subgraph: Any, saver: Any) -> AuditRow:
    own = subgraph.checkpointer
    if own is False:
        verdict, detail = LOST, "checkpointer=False: it begins anew each time, and after a restart"
    elif _is_saver(own) and own is not saver:
        verdict = LOST if _in_memory(own) else DURABLE
        detail = f"a {type(own).__name__} of its own: what it saves and what its parent saves are two commits"
    elif saver is None:
        verdict, detail = LOST, "its parent has no checkpointer"
    elif own is True:
        verdict, detail = DURABLE, "checkpointer=True: it keeps its state from call to call"
    else:
        verdict, detail = DURABLE, "with its parent's checkpointer, for the duration of a call"
    return AuditRow("subgraph", "", name, verdict, detail)


def _parts(graph: Any) -> Iterator[tuple[str, Any]]:
    """What each node is made of, with the node's name."""
    for name, node in graph.nodes.items():
        bound = getattr(node, "bound", None)
        for part in (bound, *getattr(bound, "steps", ())):
            yield name, part


def _subgraphs(graph: Any, around: str = "") -> Iterator[tuple[str, Any]]:
    """The graphs within a graph, each with its path: LangGraph leaves out those that keep no checkpoints."""
    nodes = {name: part for name, part in _parts(graph) if _is_graph(part)}
    for name, subgraph in {**dict(graph.get_subgraphs()), **nodes}.items():
        path = f"{around}|{name}" if around else name
        yield path, subgraph
        yield from _subgraphs(subgraph, path)


def _is_graph(part: Any) -> bool:
    return hasattr(part, "channels") and hasattr(part, "get_subgraphs")


def _tools(graph: Any) -> Iterator[tuple[Any, bool]]:
    for _, part in _parts(graph):
        wrapper = getattr(part, "_wrap_tool_call", None)
        guarded = isinstance(getattr(wrapper, "__self__", None), ReplayGuard)
        for tool in (getattr(part, "tools_by_name", None) or {}).values():
            yield tool, guarded


def _tool(tool: Any, guarded: bool) -> tuple[str, str]:
    if (tool.metadata or {}).get("idempotent") is True or "idempotent" in (tool.tags or ()):
        return DURABLE, "marked idempotent"
    if guarded:
        return DURABLE, "guarded: a call that is on record as completed is not made again"
    return RISK, 'a step that runs again calls it again: guard it, or mark it with metadata={"idempotent": True}'


def _settings(saver: Any, durability: str) -> Iterator[AuditRow]:
    lossy = durability == "exit"
    yield AuditRow("durability", "", durability, LOST if lossy else DURABLE, _DURABILITIES[durability])
    if isinstance(saver, LedgerSaver):
        name, loss = described_loss(saver._ledger.flush)
        yield AuditRow("flush", "", name, DURABLE if saver._ledger.flush is None else WINDOW, loss)
