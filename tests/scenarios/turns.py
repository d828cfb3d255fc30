"""Plain graphs over several turns: values, messages, joins, routing by Command, ids, metadata, the recursion limit."""

import operator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.channels import EphemeralValue, Topic, UntrackedValue
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send

from . import scenario
from .api import Api


class Count(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Scratch(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    scratch: Annotated[dict[str, int], UntrackedValue(dict)]
    topic: Annotated[list[str], Topic(str, accumulate=True)]
    once: Annotated[str, EphemeralValue(str)]


async def one(state: Count) -> dict[str, Any]:
    return {"n": state.get("n", 0) + 1, "log": ["one"]}


async def two(state: Count) -> dict[str, Any]:
    return {"n": state["n"] * 2, "log": ["two"]}


async def three(state: Count) -> dict[str, Any]:
    return {"log": [f"three saw {state['n']}"]}


@scenario("linear_turns")
async def linear_turns(api: Api) -> Any:
    graph = api.compile(api.chain(Count, one, two, three))
    config = api.thread()
    answers = [await api.invoke(graph, {"n": n, "log": [f"turn {n}"]}, config) for n in range(3)]
    return answers, await api.look(graph, config)


@scenario("thread_id_types")
async def thread_id_types(api: Api) -> Any:
    """Thread ids may be numbers, UUIDs and any text."""
    graph = api.compile(api.chain(Count, one, two))
    unique = uuid4()
    configs = [api.thread(thread_id=t) for t in (unique, unique.int, f"%|:'\"\\ é\n{unique}", f"{unique}" * 12)]
    answers = [[await api.invoke(graph, {"n": 1}, config) for _ in range(2)] for config in configs]
    seen = [await api.get_state(graph, config) for config in configs]
    return answers, [(state.values, state.next, state.metadata) for state in seen]


@scenario("metadata")
async def metadata(api: Api) -> Any:
    """Metadata, tags and configurable keys of the caller go into the checkpoint's metadata and can be filtered by."""
    graph = api.compile(api.chain(Count, one, two))
    config = {**api.thread(user="ada", level=3), "metadata": {"plan": "pro", "deep": {"a": [1, None]}}, "tags": ["t"]}
    await api.invoke(graph, {"n": 1}, config)
    await api.invoke(graph, {"n": 2}, {**config, "run_id": uuid4(), "metadata": {"plan": "free"}})
    filters: list[dict[str, Any]] = [{"plan": "pro"}, {"user": "ada", "step": 0}, {"source": "input"}, {"plan": None}]
    found = [[s.metadata for s in await api.history(graph, config, filter=f)] for f in filters]
    return found, await api.look(graph, config)


@scenario("chat")
async def chat(api: Api) -> Any:
    async def model(state: Chat) -> dict[str, Any]:
        said = state["messages"][-1]
        call = {"name": "look_up", "args": {"what": said.content}, "id": f"call {len(state['messages'])}"}
        return {"messages": [AIMessage(f"you said {said.content}", tool_calls=[call], id=f"answer {said.id}")]}

    async def trim(state: Chat) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=str(m.id)) for m in state["messages"][:-4]]}

    graph = api.compile(api.chain(Chat, model, trim))
    config = api.thread()
    first: list[AnyMessage] = [SystemMessage("be kind", id="system"), HumanMessage("hello", id="h1")]
    answers = [await api.invoke(graph, {"messages": first}, config)]
    # Every message has an id: LangGraph's reducer gives one to those without, in the background of the saves.
    for number, said in enumerate(("how are you", [{"type": "text", "text": "é \x00 \U0001f600"}], "bye")):
        answers.append(await api.invoke(graph, {"messages": [HumanMessage(said, id=f"human {number}")]}, config))
    last = {"role": "user", "content": "one more", "id": "last"}
    answers.append(await api.invoke(graph, {"messages": last}, config))
    edited = HumanMessage("hello again", id=answers[-1]["messages"][0].id)
    await api.update_state(graph, config, {"messages": [edited]}, as_node="model")
    return answers, await api.look(graph, config)


# Not with durability "async": a barrier and a topic go on changing in place while their checkpoint is being saved.
@scenario("branches_and_join", durability=["sync", "exit"])
async def branches_and_join(api: Api) -> Any:
    """Two branches of different length, a join that waits for both, a condition, and a deferred node."""

    async def left(state: Count) -> dict[str, Any]:
        return {"log": ["left"]}

    async def left_again(state: Count) -> dict[str, Any]:
        return {"log": ["left again"]}

    async def right(state: Count) -> dict[str, Any]:
        return {"log": ["right"]}

    async def join(state: Count) -> dict[str, Any]:
        return {"n": len(state["log"])}

    async def last(state: Count) -> dict[str, Any]:
        return {"log": ["last"]}

    async def route(state: Count) -> str:
        return "one" if state["n"] < 20 else END

    builder = api.nodes(Count, one, left, left_again, right, join)
    builder.add_node("last", api.node(last), defer=True)
    for edge in [(START, "one"), ("one", "left"), ("one", "right"), ("one", "last"), ("left", "left_again")]:
        builder.add_edge(*edge)
    builder.add_edge(["left_again", "right"], "join")
    builder.add_conditional_edges("join", api.node(route), ["one", END])
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"n": 0}, config), await api.invoke(graph, {"n": 1}, config)]
    return answers, await api.look(graph, config)


@scenario("command_from_nodes")
async def command_from_nodes(api: Api) -> Any:
    """Nodes route by Command: to a node, to several, to Sends, and to the end."""

    async def start(state: Count) -> Any:
        return Command(update={"log": ["start"], "n": state["n"] + 1}, goto=["left", Send("right", {"n": 40})])

    async def left(state: Count) -> Any:
        return Command(goto="finish", update={"log": [f"left {state['n']}"]})

    async def right(state: Count) -> Any:
        return [Command(update={"log": [f"right {state['n']}"]}), Command(goto="finish")]

    async def finish(state: Count) -> Any:
        return Command(goto="start" if state["n"] < 3 else END, update={"log": ["finish"]})

    builder = api.nodes(Count, start, left, right, finish)
    builder.add_edge(START, "start")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"n": n}, config) for n in (0, 5)]
    return answers, await api.look(graph, config)


@scenario("command_as_input")
async def command_as_input(api: Api) -> Any:
    graph = api.compile(api.chain(Count, one, two, three))
    config = api.thread()
    answers = [await api.invoke(graph, {"n": 1}, config)]
    answers.append(await api.invoke(graph, Command(update={"n": 10, "log": ["edited"]}), config))
    before = await api.look(graph, config)
    answers.append(await api.invoke(graph, Command(goto="two"), config))
    answers.append(await api.invoke(graph, Command(update={"n": 7}, goto=["three", Send("two", {"n": 9})]), config))
    return answers, before, await api.look(graph, config)


@scenario("untracked", durability=["sync", "exit"])
async def untracked(api: Api) -> Any:
    """Values that are never saved, topics and values of one step, also inside a Send."""

    async def put(state: Scratch) -> Any:
        update = {"scratch": {"secret": 1}, "topic": ["a"], "once": "now", "log": [f"scratch {state.get('scratch')}"]}
        return Command(update=update, goto=[Send("use", {"scratch": {"sent": 2}, "log": ["x"]}), "use"])

    async def use(state: Scratch) -> dict[str, Any]:
        seen = f"used {state.get('scratch')} {state.get('once')}"
        return {"log": [seen], "topic": ["b", "c"]}

    builder = api.nodes(Scratch, put, use)
    builder.add_edge(START, "put")
    graph = api.compile(builder, interrupt_before=["use"])
    config = api.thread()
    answers = [await api.invoke(graph, {"log": ["in"], "scratch": {"from": 0}}, config)]
    paused = await api.look(graph, config)
    answers += [await api.invoke(graph, None, config), await api.invoke(graph, {"log": ["again"]}, config)]
    return answers, paused, await api.look(graph, config)


@scenario("recursion_limit")
async def recursion_limit(api: Api) -> Any:
    async def loop(state: Count) -> Any:
        return Command(goto="loop" if state["n"] < 12 else END, update={"n": state["n"] + 1, "log": ["round"]})

    builder = api.nodes(Count, loop)
    builder.add_edge(START, "loop")
    graph = api.compile(builder)
    config = api.thread()
    limited = {**config, "recursion_limit": 4}
    errors = [await api.attempt(api.invoke(graph, {"n": 0}, limited), GraphRecursionError)]
    stopped = await api.look(graph, config)
    errors.append(await api.attempt(api.invoke(graph, None, limited), GraphRecursionError))
    answer = await api.invoke(graph, None, config)
    return errors, stopped, answer, await api.look(graph, config)


@scenario("history_pages")
async def history_pages(api: Api) -> Any:
    """History by limit, before, and filter, a page at a time."""
    graph = api.compile(api.chain(Count, one, two))
    config = api.thread()
    for n in range(3):
        await api.invoke(graph, {"n": n}, config)
    pages, before = [], None
    while page := await api.history(graph, config, limit=4, before=before):
        pages.append([(s.metadata["step"], s.next) for s in page])
        before = page[-1].config
    source = "loop" if api.durability == "exit" else "input"
    inputs = await api.history(graph, config, filter={"source": source}, limit=2)
    one_only = await api.history(graph, inputs[0].config)
    return pages, inputs, one_only, await api.list(config, limit=3, before=inputs[1].config)


@scenario("deleted_thread")
async def deleted_thread(api: Api) -> Any:
    """A thread that was deleted and read again begins anew."""
    graph = api.compile(api.chain(Count, one, two))
    config = api.thread()
    first = await api.invoke(graph, {"n": 3}, config)
    await api.delete_thread(config)
    gone = await api.look(graph, config)
    second = [await api.invoke(graph, {"n": 4}, config), await api.invoke(graph, {"n": 5}, config)]
    return first, gone, second, await api.look(graph, config)


class Other(TypedDict, total=False):
    title: str
    pages: Annotated[list[str], operator.add]


@scenario("two_graphs_on_one_thread")
async def two_graphs_on_one_thread(api: Api) -> Any:
    """Two graphs that share a thread but no state, as before and after a field was renamed: neither loses its own."""

    async def page(state: Other) -> dict[str, Any]:
        return {"pages": [f"page {len(state.get('pages', []))}"]}

    counting, writing = api.compile(api.chain(Count, one, two)), api.compile(api.chain(Other, page))
    config = api.thread()
    answers = []
    for turn in range(2):
        answers.append(await api.invoke(counting, {"n": turn}, config))
        answers.append(await api.invoke(writing, {"title": f"turn {turn}"}, config))
    states = [(await api.get_state(graph, config)).values for graph in (counting, writing)]
    return answers, states, await api.look(counting, config)
