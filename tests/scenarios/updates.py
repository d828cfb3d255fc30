"""State written from outside: update_state in all its forms, and bulk updates."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START
from langgraph.types import Send, StateUpdate

from . import scenario
from .api import Api


class Doc(TypedDict, total=False):
    title: str
    lines: Annotated[list[str], operator.add]


async def write(state: Doc) -> dict[str, Any]:
    return {"lines": [f"write {state.get('title')}"]}


async def check(state: Doc) -> dict[str, Any]:
    return {"lines": ["check"]}


async def publish(state: Doc) -> dict[str, Any]:
    return {"lines": ["publish"]}


@scenario("update_a_new_thread")
async def update_a_new_thread(api: Api) -> Any:
    graph = api.compile(api.chain(Doc, write, check, publish))
    config = api.thread()
    await api.update_state(graph, config, {"title": "new", "lines": ["by hand"]}, as_node="write")
    seen = await api.look(graph, config)
    answers = [await api.invoke(graph, None, config), await api.invoke(graph, {"title": "second"}, config)]
    started = api.thread()
    await api.update_state(graph, started, {"title": "as input"}, as_node="__start__")
    return seen, answers, await api.invoke(graph, None, started), [await api.look(graph, c) for c in (config, started)]


@scenario("update_between_turns")
async def update_between_turns(api: Api) -> Any:
    """Updates with and without as_node, several in a row, with what update_state returned and without."""
    graph = api.compile(api.chain(Doc, write, check, publish))
    config = api.thread()
    await api.invoke(graph, {"title": "one"}, config)
    returned = await api.update_state(graph, config, {"lines": ["edit 1"]})
    returned = await api.update_state(graph, returned, {"lines": ["edit 2"]}, as_node="check")
    await api.update_state(graph, config, {"title": "edited"}, as_node="write")
    seen = await api.look(graph, config)
    answers = [await api.invoke(graph, None, config), await api.get_state(graph, returned)]
    await api.update_state(graph, config, None, as_node="write")
    answers.append(await api.invoke(graph, {"title": "two"}, config))
    refused = await api.attempt(api.update_state(graph, config, {}, as_node="nobody"), InvalidUpdateError)
    return seen, answers, refused, await api.look(graph, config)


@scenario("update_to_the_end")
async def update_to_the_end(api: Api) -> Any:
    """`as_node=END` drops what would come next; as an input, and with a node's own edges, it goes on."""
    graph = api.compile(api.chain(Doc, write, check, publish), interrupt_before=["check"])
    config = api.thread()
    await api.invoke(graph, {"title": "one"}, config)
    await api.update_state(graph, config, None, as_node=END)
    ended = await api.look(graph, config)
    answers = [await api.invoke(graph, {"title": "two"}, config)]
    await api.update_state(graph, config, {"title": "three"}, as_node="__input__")
    answers.append(await api.invoke(graph, None, config))
    await api.update_state(graph, config, {"lines": ["skipped"]}, as_node="check")
    answers.append(await api.invoke(graph, None, config))
    return ended, answers, await api.look(graph, config)


@scenario("update_with_sends")
async def update_with_sends(api: Api) -> Any:
    """An update as a node whose edge sends: the Sends wait in the new checkpoint."""

    async def route(state: Doc) -> list[Send]:
        return [Send("check", {"title": f"sent {n}"}) for n in range(3)]

    async def check_sent(state: Doc) -> dict[str, Any]:
        return {"lines": [f"checked {state['title']}"]}

    builder = api.nodes(Doc, write, publish)
    builder.add_node("check", api.node(check_sent))
    builder.add_edge(START, "write")
    builder.add_conditional_edges("write", api.node(route), ["check"])
    builder.add_edge("check", "publish")
    graph = api.compile(builder)
    config = api.thread()
    await api.invoke(graph, {"title": "one"}, config)
    await api.update_state(graph, config, {"lines": ["again"]}, as_node="write")
    seen = await api.look(graph, config)
    return seen, await api.invoke(graph, None, config), await api.look(graph, config)


@scenario("bulk_updates")
async def bulk_updates(api: Api) -> Any:
    """A whole history written at once on a new thread, more on top of it, and a run from there."""
    graph = api.compile(api.chain(Doc, write, check, publish))
    config = api.thread()
    history = [
        [StateUpdate({"title": "bulk"}, "__input__")],
        [StateUpdate({"title": "bulk", "lines": ["start"]}, "__start__")],
        [StateUpdate({"lines": ["written"]}, "write")],
        [StateUpdate({"lines": ["checked"]}, "check"), StateUpdate({"lines": ["published"]}, "publish")],
    ]
    returned = await api.bulk_update_state(graph, config, history)
    seen = await api.look(graph, config)
    await api.bulk_update_state(graph, returned, [[StateUpdate({"lines": [f"more {n}"]}, "write")] for n in range(3)])
    answers = [await api.invoke(graph, None, config), await api.invoke(graph, {"title": "two"}, config)]
    old = (await api.history(graph, config))[3].config
    await api.bulk_update_state(graph, old, [[StateUpdate({"lines": ["fork"]}, "write")], [StateUpdate(None, END)]])
    return seen, answers, await api.look(graph, config)


@scenario("read_then_update")
async def read_then_update(api: Api) -> Any:
    """Reads of all kinds between the writes change nothing."""
    graph = api.compile(api.chain(Doc, write, check, publish), interrupt_before=["publish"])
    config = api.thread()
    for turn in range(3):
        await api.invoke(graph, {"title": f"turn {turn}"}, config)
        state = await api.get_state(graph, config)
        await api.history(graph, config)
        await api.update_state(graph, state.config, {"lines": [f"seen {len(state.values['lines'])}"]})
        await api.get_tuple(config)
        await api.invoke(graph, None, config)
    return await api.look(graph, config)
