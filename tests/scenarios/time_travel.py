"""Going back: replay, forks, resuming at old checkpoints, with and without subgraphs."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START
from langgraph.types import Command, interrupt

from . import scenario
from .api import Api


class Trip(TypedDict, total=False):
    to: str
    log: Annotated[list[str], operator.add]


async def pack(state: Trip) -> dict[str, Any]:
    return {"log": [f"pack for {state['to']}"]}


async def travel(state: Trip) -> dict[str, Any]:
    return {"log": [f"travel to {state['to']}"]}


async def rest(state: Trip) -> dict[str, Any]:
    return {"log": ["rest"]}


async def ask(state: Trip) -> dict[str, Any]:
    return {"log": [f"{interrupt(state['to'])}"]}


async def _at(api: Api, graph: Any, config: RunnableConfig, *next_: str, newest: bool = True) -> RunnableConfig:
    """The checkpoint of the thread whose next nodes are these."""
    found = [s.config for s in await api.history(graph, config) if s.next == next_]
    return found[0 if newest else -1]


@scenario("replay")
async def replay(api: Api) -> Any:
    """None at an old checkpoint, at the newest one, and again at the old one."""
    graph = api.compile(api.chain(Trip, pack, travel, rest))
    config = api.thread()
    answers = [await api.invoke(graph, {"to": "Rome"}, config), await api.invoke(graph, {"to": "Oslo"}, config)]
    if api.durability == "exit":
        newest = (await api.get_state(graph, config)).config
        return answers, await api.invoke(graph, None, newest), await api.look(graph, config)
    old = await _at(api, graph, config, "travel", newest=False)
    answers += [await api.get_state(graph, old), await api.invoke(graph, None, old)]
    seen = await api.look(graph, config)
    newest = (await api.get_state(graph, config)).config
    answers += [await api.invoke(graph, None, newest), await api.invoke(graph, None, old)]
    return answers, seen, await api.look(graph, config)


@scenario("new_input_at_an_old_checkpoint")
async def new_input_at_an_old_checkpoint(api: Api) -> Any:
    graph = api.compile(api.chain(Trip, pack, travel))
    config = api.thread()
    await api.invoke(graph, {"to": "Rome"}, config)
    old = (await api.get_state(graph, config)).config
    await api.invoke(graph, {"to": "Oslo"}, config)
    answers = [await api.invoke(graph, {"to": "Bern"}, old), await api.invoke(graph, {"to": "Kyiv"}, config)]
    answers.append(await api.invoke(graph, Command(update={"to": "Faro"}, goto="travel"), old))
    return answers, await api.look(graph, config)


@scenario("fork_by_update")
async def fork_by_update(api: Api) -> Any:
    """Two forks of one old checkpoint, run in turns, while the main line goes on as well."""
    graph = api.compile(api.chain(Trip, pack, travel, rest), interrupt_before=["travel"])
    config = api.thread()
    await api.invoke(graph, {"to": "Rome"}, config)
    old = (await api.get_state(graph, config)).config
    await api.invoke(graph, None, config)
    first = await api.update_state(graph, old, {"to": "Oslo"})
    second = await api.update_state(graph, old, {"to": "Bern"}, as_node="pack")
    forked = await api.look(graph, config)
    answers = [await api.invoke(graph, None, where) for where in (first, second, config)]
    states = [await api.get_state(graph, where) for where in (first, second, old, config)]
    return forked, answers, states, await api.look(graph, config)


@scenario("copies")
async def copies(api: Api) -> Any:
    """`__copy__` of the newest and of an old checkpoint, with and without updates, then run."""
    graph = api.compile(api.chain(Trip, pack, travel, rest), interrupt_before=["rest"])
    config = api.thread()
    await api.invoke(graph, {"to": "Rome"}, config)
    old = (await api.get_state(graph, config)).config
    copied = await api.update_state(graph, old, None, as_node="__copy__")
    answers = [await api.invoke(graph, None, copied)]
    seen = await api.look(graph, config)
    await api.update_state(graph, config, None, as_node="__copy__")
    updated = await api.update_state(graph, old, [({"log": ["as rest"]}, "rest")], as_node="__copy__")
    answers.append(await api.invoke(graph, None, updated))
    answers.append(await api.invoke(graph, {"to": "Oslo"}, config))
    return answers, seen, await api.look(graph, config)


@scenario("replay_of_an_interrupt")
async def replay_of_an_interrupt(api: Api) -> Any:
    """The question that was answered is asked again at its checkpoint, and answered otherwise."""
    graph = api.compile(api.chain(Trip, pack, ask, rest))
    config = api.thread()
    answers = [await api.invoke(graph, {"to": "Rome"}, config)]
    asking = (await api.get_state(graph, config)).config
    answers.append(await api.invoke(graph, Command(resume="yes"), config))
    answers.append(await api.invoke(graph, None, asking))
    again = await api.look(graph, config)
    answers.append(await api.invoke(graph, Command(resume="no"), config))
    answers.append(await api.invoke(graph, Command(resume="maybe"), asking))
    forked = await api.update_state(graph, asking, {"to": "Oslo"}, as_node="pack")
    answers += [await api.invoke(graph, None, forked), await api.invoke(graph, Command(resume="ok"), config)]
    return answers, again, await api.look(graph, config)


@scenario("resume_at_the_newest_checkpoint")
async def resume_at_the_newest_checkpoint(api: Api) -> Any:
    """Every call names the checkpoint it goes on from, which is the newest."""

    async def other(state: Trip) -> dict[str, Any]:
        return {"log": [f"other {interrupt('other')}"]}

    builder = api.nodes(Trip, ask, other, rest)
    builder.add_edge(START, "ask")
    builder.add_edge(START, "other")
    builder.add_edge(["ask", "other"], "rest")
    graph = api.compile(builder)
    config = api.thread()
    answer = await api.invoke(graph, {"to": "Rome"}, config)
    seen = []
    for value in ("other", "Rome"):
        ids = {i.value: i.id for i in answer["__interrupt__"]}
        newest = (await api.get_state(graph, config)).config
        answer = await api.invoke(graph, Command(resume={ids[value]: f"to {value}"}), newest)
        seen.append(await api.look(graph, config))
    newest = (await api.get_state(graph, config)).config
    return seen, answer, await api.invoke(graph, {"to": "Oslo"}, newest), await api.look(graph, config)


def _with_subgraph(api: Api, stateful: bool) -> Any:
    builder = api.nodes(Trip, pack, rest)
    inner = api.chain(Trip, travel, ask)
    builder.add_node("inner", inner.compile(checkpointer=True) if stateful else inner.compile())
    builder.add_edge(START, "pack")
    builder.add_edge("pack", "inner")
    builder.add_edge("inner", "rest")
    return api.compile(builder)


async def _travel_with_subgraph(api: Api, graph: Any) -> Any:
    config = api.thread()
    answers = []
    for city in ("Rome", "Oslo"):
        answers += [await api.invoke(graph, {"to": city}, config), await api.invoke(graph, Command(resume="y"), config)]
    if api.durability == "exit":
        return answers, await api.look(graph, config)
    old = await _at(api, graph, config, "inner", newest=False)
    answers.append(await api.invoke(graph, None, old))
    seen = [await api.look(graph, config)]
    answers.append(await api.invoke(graph, Command(resume="n"), config))
    seen.append(await api.look(graph, config))
    forked = await api.update_state(graph, old, {"to": "Bern"}, as_node="pack")
    answers.append(await api.invoke(graph, None, forked))
    answers.append(await api.invoke(graph, Command(resume="z"), config))
    return answers, seen, await api.look(graph, config)


@scenario("replay_with_subgraph")
async def replay_with_subgraph(api: Api) -> Any:
    return await _travel_with_subgraph(api, _with_subgraph(api, stateful=False))


@scenario("replay_with_stateful_subgraph")
async def replay_with_stateful_subgraph(api: Api) -> Any:
    return await _travel_with_subgraph(api, _with_subgraph(api, stateful=True))


@scenario("replay_inside_a_subgraph")
async def replay_inside_a_subgraph(api: Api) -> Any:
    """Going back to a checkpoint of the subgraph itself, by its own config."""
    graph = _with_subgraph(api, stateful=False)
    config = api.thread()
    answers = [await api.invoke(graph, {"to": "Rome"}, config)]
    below = (await api.get_state(graph, config, subgraphs=True)).tasks[0].state.config
    states = await api.history(graph, below)
    answers.append(await api.invoke(graph, None, states[-1].config))
    seen = await api.look(graph, config)
    answers.append(await api.invoke(graph, Command(resume="y"), config))
    return answers, states, seen, await api.look(graph, config)
