"""Interrupts and their answers: one, several in a node, in parallel nodes, in subgraphs; edited, ignored, falsy."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START
from langgraph.types import Command, Send, interrupt

from . import scenario
from .api import Api


class Asked(TypedDict, total=False):
    question: str
    answers: Annotated[list[str], operator.add]


async def before(state: Asked) -> dict[str, Any]:
    return {"answers": ["before"]}


async def ask(state: Asked) -> dict[str, Any]:
    return {"answers": [f"{state['question']}: {interrupt({'ask': state['question']})}"]}


async def after(state: Asked) -> dict[str, Any]:
    return {"answers": ["after"]}


@scenario("interrupt_resume")
async def interrupt_resume(api: Api) -> Any:
    graph = api.compile(api.chain(Asked, before, ask, after))
    config = api.thread()
    answers = []
    paused = []
    for turn in range(2):
        answers.append(await api.invoke(graph, {"question": f"name {turn}"}, config))
        paused.append(await api.look(graph, config))
        answers.append(await api.invoke(graph, Command(resume=f"Ada {turn}"), config))
    return answers, paused, await api.look(graph, config)


@scenario("interrupt_unanswered")
async def interrupt_unanswered(api: Api) -> Any:
    """The user goes on with None, with a new input, or with a falsy answer, instead of an ordinary one."""
    graph = api.compile(api.chain(Asked, ask, after))
    config = api.thread()
    answers = [await api.invoke(graph, {"question": "first"}, config), await api.invoke(graph, None, config)]
    still = await api.look(graph, config)
    answers.append(await api.invoke(graph, {"question": "second"}, config))
    other = await api.look(graph, config)
    answers.append(await api.invoke(graph, Command(resume=0), config))
    answers.append(await api.invoke(graph, Command(resume="nothing waits"), config))
    return answers, still, other, await api.look(graph, config)


@scenario("interrupts_in_one_node")
async def interrupts_in_one_node(api: Api) -> Any:
    async def form(state: Asked) -> dict[str, Any]:
        name = interrupt("name")
        age = interrupt({"age of": name})
        return {"answers": [f"{name} {age} {interrupt('sure')}"]}

    graph = api.compile(api.chain(Asked, before, form, after))
    config = api.thread()
    answers = [await api.invoke(graph, {"question": "form"}, config)]
    paused = []
    for answer in ("Ada", 36, True):
        paused.append(await api.look(graph, config))
        answers.append(await api.invoke(graph, Command(resume=answer), config))
    return answers, paused, await api.look(graph, config)


def _parallel(api: Api) -> Any:
    async def left(state: Asked) -> dict[str, Any]:
        return {"answers": [f"left {interrupt('left')}"]}

    async def middle(state: Asked) -> dict[str, Any]:
        return {"answers": ["middle asks nothing"]}

    async def right(state: Asked) -> dict[str, Any]:
        return {"answers": [f"right {interrupt('right')} {interrupt('right again')}"]}

    builder = api.nodes(Asked, left, middle, right, after)
    for name in ("left", "middle", "right"):
        builder.add_edge(START, name)
    builder.add_edge(["left", "middle", "right"], "after")
    return api.compile(builder)


def _ids(answer: dict[str, Any]) -> dict[Any, str]:
    return {i.value: i.id for i in answer["__interrupt__"]}


@scenario("parallel_interrupts_at_once")
async def parallel_interrupts_at_once(api: Api) -> Any:
    graph = _parallel(api)
    config = api.thread()
    asked = await api.invoke(graph, {"question": "both"}, config)
    refused = await api.attempt(api.invoke(graph, Command(resume="which one?"), config), RuntimeError)
    paused = await api.look(graph, config)
    again = await api.invoke(graph, Command(resume={i: f"answer to {v}" for v, i in _ids(asked).items()}), config)
    last = await api.invoke(graph, Command(resume=dict.fromkeys(_ids(again).values(), "the end")), config)
    order = [sorted(_ids(a)) for a in (asked, again)]
    return order, paused, str(refused), last, await api.look(graph, config)


@scenario("parallel_interrupts_one_by_one")
async def parallel_interrupts_one_by_one(api: Api) -> Any:
    graph = _parallel(api)
    config = api.thread()
    answer = await api.invoke(graph, {"question": "both"}, config)
    seen = []
    for value in ("right", "left", "right again"):
        answer = await api.invoke(graph, Command(resume={_ids(answer)[value]: f"answer to {value}"}), config)
        seen.append(await api.look(graph, config))
    return seen, answer


@scenario("interrupt_edited")
async def interrupt_edited(api: Api) -> Any:
    """State edited while the thread waits; an answer that brings an update and a jump."""
    graph = api.compile(api.chain(Asked, before, ask, after))
    config = api.thread()
    await api.invoke(graph, {"question": "first"}, config)
    await api.update_state(graph, config, {"question": "edited"}, as_node="before")
    edited = await api.look(graph, config)
    answers = [await api.invoke(graph, None, config), await api.invoke(graph, Command(resume="yes"), config)]
    answers.append(await api.invoke(graph, {"question": "second"}, config))
    answers.append(await api.invoke(graph, Command(resume="no", update={"answers": ["by command"]}), config))
    answers.append(await api.invoke(graph, {"question": "third"}, config))
    answers.append(await api.invoke(graph, Command(resume="maybe", goto="after"), config))
    return edited, answers, await api.look(graph, config)


@scenario("interrupt_in_sends")
async def interrupt_in_sends(api: Api) -> Any:
    """Five Sends of one node, of which three ask; answered two at a time."""

    async def plan(state: Asked) -> Any:
        return Command(goto=[Send("work", {"question": str(i)}) for i in range(5)])

    async def work(state: Asked) -> dict[str, Any]:
        number = state["question"]
        return {"answers": [f"{number} {interrupt(number) if int(number) % 2 == 0 else 'alone'}"]}

    builder = api.nodes(Asked, plan, work)
    builder.add_edge(START, "plan")
    graph = api.compile(builder)
    config = api.thread()
    asked = await api.invoke(graph, {"question": "all"}, config)
    ids = _ids(asked)
    paused = await api.look(graph, config)
    some = await api.invoke(graph, Command(resume={ids["0"]: "zero", ids["4"]: "four"}), config)
    part = await api.look(graph, config)
    done = await api.invoke(graph, Command(resume={ids["2"]: "two"}), config)
    return paused, sorted(_ids(some)), part, done, await api.look(graph, config)


@scenario("interrupt_in_subgraph")
async def interrupt_in_subgraph(api: Api) -> Any:
    inner = api.chain(Asked, before, ask).compile()
    builder = api.nodes(Asked, after)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "after")
    graph = api.compile(builder)
    config = api.thread()
    seen, answers = [], []
    for turn in range(2):
        answers.append(await api.invoke(graph, {"question": f"inner {turn}"}, config))
        seen.append(await api.look(graph, config))
        state = await api.get_state(graph, config, subgraphs=True)
        below = state.tasks[0].state.config
        seen.append([await api.get_state(graph, below), await api.history(graph, below)])
        answers.append(await api.invoke(graph, Command(resume=f"ok {turn}"), config))
    return seen, answers, await api.look(graph, config)


@scenario("interrupt_in_called_subgraph")
async def interrupt_in_called_subgraph(api: Api) -> Any:
    """The node calls the subgraph itself, asks on its own account, and then runs again from its beginning."""
    inner = api.chain(Asked, ask, after).compile()

    async def caller(state: Asked) -> dict[str, Any]:
        found = await api.inner.invoke(inner, {"question": state["question"]})
        return {"answers": [*found["answers"], interrupt("outer")]}

    graph = api.compile(api.chain(Asked, before, caller))
    config = api.thread()
    answers, seen = [], []
    for value in ({"question": "q"}, Command(resume="to inner"), Command(resume="to outer")):
        answers.append(await api.invoke(graph, value, config))
        seen.append(await api.look(graph, config))
    return answers, seen


@scenario("subgraph_state_edited")
async def subgraph_state_edited(api: Api) -> Any:
    """While a subgraph waits, its own state is edited through its own config; then it goes on."""
    inner = api.chain(Asked, before, ask, after).compile()
    builder = api.nodes(Asked)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph = api.compile(builder)
    config = api.thread()
    await api.invoke(graph, {"question": "plain"}, config)
    below = (await api.get_state(graph, config, subgraphs=True)).tasks[0].state.config
    await api.update_state(graph, below, {"question": "edited below"}, as_node="before")
    edited = await api.look(graph, config)
    answers = [await api.invoke(graph, None, config), await api.invoke(graph, Command(resume="fine"), config)]
    return edited, answers, await api.look(graph, config)
