"""Delta channels, whose value is rebuilt from the writes of earlier checkpoints."""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Overwrite, Send, interrupt

from . import scenario
from .api import Api


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Low(TypedDict, total=False):
    """A snapshot at every second update."""

    n: int
    items: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=2)]


class High(TypedDict, total=False):
    """No snapshot in any of these tests, unless one is forced."""

    n: int
    items: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1000)]


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


STATES: dict[str, Any] = {"low": Low, "high": High}


async def first(state: dict[str, Any]) -> dict[str, Any]:
    return {"items": [f"first {len(state.get('items', []))}"], "n": state.get("n", 0) + 1}


async def second(state: dict[str, Any]) -> dict[str, Any]:
    return {"items": [f"second {len(state['items'])}"]}


async def quiet(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": len(state["items"])}


async def ask(state: dict[str, Any]) -> dict[str, Any]:
    return {"items": [f"{interrupt(len(state['items']))}"]}


async def _turns(api: Api, state: Any) -> Any:
    graph = api.compile(api.chain(state, first, second, quiet))
    config = api.thread()
    answers = [await api.invoke(graph, {"items": [f"turn {n}"]}, config) for n in range(4)]
    return answers, await api.look(graph, config)


async def _updates(api: Api, state: Any) -> Any:
    graph = api.compile(api.chain(state, first, second, quiet))
    config = api.thread()
    await api.update_state(graph, config, {"items": ["by hand"]}, as_node="first")
    answers = [await api.invoke(graph, None, config), await api.invoke(graph, {"items": ["in"]}, config)]
    await api.update_state(graph, config, {"items": ["edited"]}, as_node="first")
    answers.append(await api.invoke(graph, None, config))
    await api.update_state(graph, config, {"items": Overwrite(["fresh"])}, as_node="second")
    answers.append(await api.invoke(graph, None, config))
    answers.append(await api.invoke(graph, {"items": Overwrite(["begin"])}, config))
    await api.bulk_update_state(graph, config, [[({"items": [f"bulk {n}"]}, "first", None)] for n in range(3)])
    return answers, await api.look(graph, config)


async def _forks(api: Api, state: Any) -> Any:
    """Siblings of one parent, each with writes of its own: none may see another's."""
    graph = api.compile(api.chain(state, first, second, quiet), interrupt_before=["second"])
    config = api.thread()
    await api.invoke(graph, {"items": ["in"]}, config)
    old = (await api.get_state(graph, config)).config
    answers = [await api.invoke(graph, None, config)]
    one = await api.update_state(graph, old, {"items": ["fork one"]}, as_node="first")
    two = await api.update_state(graph, old, {"items": ["fork two"]}, as_node="first")
    copied = await api.update_state(graph, old, None, as_node="__copy__")
    answers += [await api.invoke(graph, None, where) for where in (one, two, copied, old)]
    answers.append(await api.invoke(graph, {"items": ["at old"]}, old))
    states = [await api.get_state(graph, where) for where in (one, two, copied, old)]
    return answers, states, await api.look(graph, config)


async def _interrupts(api: Api, state: Any) -> Any:
    """A node that asks beside one that has written, an answer that brings an update, an answer at the checkpoint."""
    builder = api.nodes(state, first, second, ask, quiet)
    for edge in [(START, "first"), ("first", "second"), ("first", "ask"), ("second", "quiet")]:
        builder.add_edge(*edge)
    graph = api.compile(builder)
    config = api.thread()
    answers, seen = [], []
    for value in ({"items": ["in"]}, Command(resume="yes"), {"items": ["again"]}):
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
    asking = (await api.get_state(graph, config)).config
    answers.append(await api.invoke(graph, Command(resume="no", update={"items": ["with it"]}), config))
    answers.append(await api.invoke(graph, Command(resume="later"), asking))
    answers.append(await api.invoke(graph, Command(update={"items": ["jump"]}, goto="quiet"), config))
    return answers, seen, await api.look(graph, config)


async def _fanout(api: Api, state: Any) -> Any:
    async def split(state: dict[str, Any]) -> Any:
        return Command(goto=[Send("work", {"n": n}) for n in range(12)], update={"items": ["split"]})

    async def work(state: dict[str, Any]) -> dict[str, Any]:
        return {"items": [f"work {state['n']}"]}

    builder = api.nodes(state, split, work, quiet)
    builder.add_edge(START, "split")
    builder.add_edge("work", "quiet")
    graph = api.compile(builder)
    config = api.thread()
    answers = [await api.invoke(graph, {"items": [f"turn {n}"]}, config) for n in range(3)]
    return answers, await api.look(graph, config)


async def _failures(api: Api, state: Any) -> Any:
    failing = ["third", "second", "first"]

    async def fragile(state: dict[str, Any]) -> dict[str, Any]:
        if failing:
            raise OSError(failing.pop())
        return {"items": ["survived"]}

    graph = api.compile(api.chain(state, first, fragile, quiet))
    config = api.thread()
    errors = [await api.attempt(api.invoke(graph, {"items": ["in"]}, config), OSError)]
    errors.append(await api.attempt(api.invoke(graph, None, config), OSError))
    errors.append(await api.attempt(api.invoke(graph, {"items": ["new"]}, config), OSError))
    seen = await api.look(graph, config)
    return errors, seen, await api.invoke(graph, None, config), await api.look(graph, config)


async def _subgraphs(api: Api, state: Any) -> Any:
    """A delta channel in a parent and in a stateful subgraph below it."""
    below = api.chain(state, second, ask).compile(checkpointer=True)

    async def caller(state: dict[str, Any]) -> dict[str, Any]:
        found = await api.inner.invoke(below, {"items": [f"down {state['n']}"]})
        return {"items": [f"{len(found['items'])} below"]}

    graph = api.compile(api.chain(state, first, caller, quiet))
    config = api.thread()
    answers = []
    for turn in range(3):
        answers.append(await api.invoke(graph, {"items": [f"turn {turn}"]}, config))
        answers.append(await api.invoke(graph, Command(resume=f"yes {turn}"), config))
    return answers, await api.look(graph, config)


async def _closed(api: Api, state: Any) -> Any:
    """A stream closed half-way, then None, then a new input."""
    graph = api.compile(api.chain(state, first, second, quiet))
    config = api.thread()
    seen = []
    for turn in range(2):
        stream = api.stream(graph, {"items": [f"turn {turn}"]}, config, stream_mode="updates")
        await anext(stream)
        await stream.aclose()
        seen.append(await api.look(graph, config))
    return seen, await api.invoke(graph, None, config), await api.look(graph, config)


def _register() -> None:
    topics = (_turns, _updates, _forks, _interrupts, _fanout, _failures, _subgraphs, _closed)
    for topic in topics:
        for name, state in STATES.items():

            async def body(api: Api, topic: Any = topic, state: Any = state) -> Any:
                return await topic(api, state)

            scenario(f"delta{topic.__name__}_{name}")(body)


_register()


@scenario("delta_chat")
async def delta_chat(api: Api) -> Any:
    """The answers have no ids; LangGraph gives them some before they are saved. (To an input it does so afterwards.)"""

    async def model(state: Talk) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    graph = api.compile(api.chain(Talk, model))
    config = api.thread()
    answers = [
        await api.invoke(graph, {"messages": [HumanMessage(f"turn {n}", id=f"human {n}")]}, config) for n in range(5)
    ]
    changed = HumanMessage("edited", id=answers[-1]["messages"][0].id)
    await api.update_state(graph, config, {"messages": [changed]}, as_node="model")
    answers.append(await api.invoke(graph, {"messages": {"role": "user", "content": "last", "id": "last"}}, config))
    return answers, await api.look(graph, config)
