"""What applications do around a graph: polling, batches, several savers, tools, caches, ids that went through JSON."""

import json
import operator
import threading
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import START
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import CachePolicy, Command, interrupt

from . import scenario
from .api import Api


class Work(TypedDict, total=False):
    item: str
    log: Annotated[list[str], operator.add]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def a(state: Work) -> dict[str, Any]:
    return {"log": [f"a {state.get('item')}"]}


async def b(state: Work) -> dict[str, Any]:
    return {"log": [f"b {state.get('item')}"]}


async def ask(state: Work) -> dict[str, Any]:
    return {"log": [f"{interrupt(state.get('item'))}"]}


@scenario("polled_while_running")
async def polled_while_running(api: Api) -> Any:
    """Somebody else reads the thread in every way, again and again, while it runs, waits and is answered."""
    graph = api.compile(api.chain(Work, a, b, ask))
    config = api.thread()
    done = threading.Event()

    async def run() -> list[Any]:
        try:
            values = ({"item": "x"}, Command(resume="yes"), {"item": "y"}, Command(resume="no"))
            return [await api.invoke(graph, value, config) for value in values]
        finally:
            done.set()

    async def poll() -> None:
        while not done.is_set():
            state = await api.get_state(graph, config)
            if state.config["configurable"].get("checkpoint_id"):
                await api.get_state(graph, state.config)
            await api.history(graph, config, limit=2)
            await api.get_tuple(config)
            await api.pause()

    answers, _ = await api.gather(run, poll)
    return answers, await api.look(graph, config)


@scenario("batch")
async def batch(api: Api) -> Any:
    """`graph.batch` over five threads, twice."""
    graph = api.compile(api.chain(Work, a, b))
    configs = [api.thread() for _ in range(5)]
    answers = []
    for turn in range(2):
        inputs = [{"item": f"{n} turn {turn}"} for n in range(5)]
        answers.append(await api.batch(graph, inputs, configs))
    return answers, [await api.look(graph, config) for config in configs]


@scenario("two_savers_in_turns")
async def two_savers_in_turns(api: Api) -> Any:
    """Two saver objects on one database, as in two workers: each goes on where the other stopped."""
    builder = api.chain(Work, a, ask, b)
    graphs = [api.compile(builder), builder.compile(checkpointer=api.second)]
    config = api.thread()
    answers = []
    values = [{"item": "x"}, Command(resume="yes"), {"item": "y"}, Command(resume="no"), {"item": "z"}]
    for number, value in enumerate(values):
        answers.append(await api.invoke(graphs[number % 2], value, config))
    await api.update_state(graphs[1], config, {"log": ["by second"]}, as_node="a")
    answers.append(await api.invoke(graphs[0], Command(resume="last"), config))
    return answers, [await api.look(graph, config) for graph in graphs]


@scenario("tools")
async def tools(api: Api) -> Any:
    """A model that calls three tools at once, of which one asks a human and one fails; then it answers."""

    async def look_up(word: str) -> str:
        return f"{word} means something"

    async def approve(amount: int) -> str:
        return f"{amount} approved by {interrupt({'approve': amount})}"

    async def divide(by: int) -> str:
        return str(1 // by)

    def tool(function: Any) -> StructuredTool:
        given = {"coroutine": function} if api.inner.asynchronous else {"func": api.node(function)}
        return StructuredTool.from_function(**given, name=function.__name__, description=function.__name__)

    async def model(state: Chat) -> dict[str, Any]:
        said, turn = state["messages"][-1], len(state["messages"])
        if said.type != "human":
            return {"messages": [AIMessage(f"answer after {turn}", id=f"ai {turn}")]}
        wanted = [("look_up", {"word": "ledger"}), ("approve", {"amount": turn}), ("divide", {"by": 0})]
        calls = [{"name": name, "args": args, "id": f"{name} {turn}"} for name, args in wanted]
        return {"messages": [AIMessage("let me see", tool_calls=calls, id=f"ai {turn}")]}

    node = ToolNode([tool(look_up), tool(approve), tool(divide)], handle_tool_errors="it failed")
    builder = api.nodes(Chat, model)
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = api.compile(builder)
    config = api.thread()
    answers, seen = [], []
    for turn in range(2):
        human = HumanMessage(f"question {turn}", id=f"human {turn}")
        answers.append(await api.invoke(graph, {"messages": [human]}, config))
        seen.append((await api.get_state(graph, config)).next)
        answers.append(await api.invoke(graph, Command(resume="Ada"), config))
    values = [[(m.type, m.content) for m in answer["messages"]] for answer in answers]
    return values, seen, [(s.next, s.metadata, len(s.tasks)) for s in await api.history(graph, config)]


@scenario("durability_changes", durability=["sync"])
async def durability_changes(api: Api) -> Any:
    """One thread, whose runs have different durability modes."""
    graph = api.compile(api.chain(Work, a, ask, b))
    config = api.thread()
    answers = []
    for before, after in (("sync", "exit"), ("exit", "async"), ("async", "sync"), ("exit", "exit")):
        answers.append(await api.invoke(graph, {"item": before}, config, durability=before))
        answers.append(await api.invoke(graph, Command(resume=after), config, durability=after))
    return answers, await api.look(graph, config)


@scenario("same_run_id_again")
async def same_run_id_again(api: Api) -> Any:
    """A run that failed is called again with its own input and run id, as job queues do: LangGraph resumes it."""
    failing = ["first time"]

    async def fragile(state: Work) -> dict[str, Any]:
        if failing:
            raise OSError(failing.pop())
        return {"log": ["survived"]}

    graph = api.compile(api.chain(Work, a, fragile, b))
    config = api.thread()
    config["metadata"] = {"run_id": "job 1"}
    failed = await api.attempt(api.invoke(graph, {"item": "x"}, config), OSError)
    answers = [await api.invoke(graph, {"item": "x"}, config)]
    answers.append(await api.invoke(graph, {"item": "y"}, {**config, "metadata": {"run_id": "job 2"}}))
    return failed, answers, await api.look(graph, config)


@scenario("cached_nodes")
async def cached_nodes(api: Api) -> Any:
    """A node whose result comes from a cache the second time, on the same thread and on another."""
    runs: list[str] = []

    async def costly(state: Work) -> dict[str, Any]:
        runs.append(state["item"])
        return {"log": [f"costly {state['item']}"]}

    builder = api.nodes(Work, a, b)
    builder.add_node("costly", api.node(costly), cache_policy=CachePolicy(key_func=lambda state: state["item"]))
    for edge in [(START, "costly"), ("costly", "a"), (START, "b")]:
        builder.add_edge(*edge)
    graph = api.compile(builder, cache=InMemoryCache())
    configs = [api.thread(), api.thread()]
    answers = [await api.invoke(graph, {"item": item}, config) for item in ("x", "y", "x") for config in configs]
    return answers, runs, [await api.look(graph, config) for config in configs]


@scenario("ids_through_json")
async def ids_through_json(api: Api) -> Any:
    """Configs that went to a browser and back, to the newest and to older checkpoints."""
    graph = api.compile(api.chain(Work, a, ask, b))
    config = api.thread()

    async def sent_back() -> Any:
        return json.loads(json.dumps((await api.get_state(graph, config)).config))

    await api.invoke(graph, {"item": "x"}, config)
    asking = await sent_back()
    answers = [await api.invoke(graph, Command(resume="yes"), asking)]
    ended = await sent_back()
    answers.append(await api.invoke(graph, {"item": "y"}, ended))
    answers.append(await api.invoke(graph, Command(resume="no"), config))
    edited = json.loads(json.dumps(await api.update_state(graph, asking, {"log": ["edited"]}, as_node="a")))
    answers.append(await api.invoke(graph, None, edited))
    answers.append(await api.invoke(graph, {"item": "z"}, ended))
    return answers, await api.look(graph, config)


@scenario("chain_around_graph")
async def chain_around_graph(api: Api) -> Any:
    """The graph is a step of a chain, and the chain calls it twice on one thread."""
    graph = api.compile(api.chain(Work, a, b))
    config = api.thread()

    def wrap(answer: dict[str, Any]) -> dict[str, Any]:
        return {"item": f"{len(answer['log'])}"}

    step = graph.bind(durability=api.durability)
    chain = RunnableLambda(wrap) | step | RunnableLambda(wrap) | step
    answers = [await api.call(chain, {"log": [f"turn {n}"]}, config) for n in range(2)]
    return answers, await api.look(graph, config)


@scenario("stateful_subgraph_updated")
async def stateful_subgraph_updated(api: Api) -> Any:
    """Between turns the state that a stateful subgraph keeps is edited through its own namespace."""
    builder = api.nodes(Work, b)
    builder.add_node("memory", api.chain(Work, a).compile(checkpointer=True))
    builder.add_edge(START, "memory")
    builder.add_edge("memory", "b")
    graph = api.compile(builder)
    config = api.thread()
    below: Any = {"configurable": {**config["configurable"], "checkpoint_ns": "memory"}}
    answers = []
    for turn in range(3):
        answers.append(await api.invoke(graph, {"item": f"turn {turn}"}, config))
        await api.update_state(graph, below, {"log": [f"edited {turn}"]}, as_node="a")
    return answers, await api.get_state(graph, below), await api.look(graph, config)
