"""The functional interface: entrypoints and tasks, what they remember, ask, and fail at."""

from typing import Any

from langgraph.func import entrypoint, task
from langgraph.types import Command, RetryPolicy, interrupt

from . import scenario
from .api import Api


def _entrypoint(api: Api, function: Any) -> Any:
    return entrypoint(checkpointer=api.saver)(api.node(function))


async def _result(api: Api, future: Any) -> Any:
    return await future if api.inner.asynchronous else future.result()


@scenario("entrypoint_previous")
async def entrypoint_previous(api: Api) -> Any:
    async def counter(step: int, *, previous: Any = None) -> int:
        return (previous or 0) + step

    flow = _entrypoint(api, counter)
    config = api.thread()
    answers = [await api.invoke(flow, n, config) for n in (1, 2, 3)]
    return answers, await api.look(flow, config)


@scenario("entrypoint_final")
async def entrypoint_final(api: Api) -> Any:
    async def saver(step: int, *, previous: Any = None) -> Any:
        return entrypoint.final(value={"returned": previous}, save=[previous, step])

    flow = _entrypoint(api, saver)
    config = api.thread()
    answers = [await api.invoke(flow, n, config) for n in (1, 2, 3)]
    await api.update_state(flow, config, [None, 10])
    answers.append(await api.invoke(flow, 4, config))
    return answers, await api.look(flow, config)


@scenario("parallel_tasks")
async def parallel_tasks(api: Api) -> Any:
    """Twenty tasks at once, then tasks that call tasks."""

    async def square(n: int) -> int:
        return n * n

    square_task = task(api.node(square), name="square")

    async def sum_of_squares(numbers: list[int]) -> int:
        futures = [square_task(n) for n in numbers]
        return sum([await _result(api, future) for future in futures])

    sum_task = task(api.node(sum_of_squares), name="sum_of_squares")

    async def flow_body(size: int) -> dict[str, Any]:
        futures = [square_task(n) for n in range(size)]
        squares = [await _result(api, future) for future in futures]
        nested = [sum_task([1, 2]), sum_task([3, 4])]
        return {"squares": squares, "nested": [await _result(api, future) for future in nested]}

    flow = _entrypoint(api, flow_body)
    config = api.thread()
    answers = [await api.invoke(flow, n, config) for n in (20, 2)]
    return answers, await api.look(flow, config)


@scenario("interrupts_in_tasks")
async def interrupts_in_tasks(api: Api) -> Any:
    """Tasks that ask and an entrypoint that asks; a finished task is not run again."""
    runs: list[str] = []

    async def draft(topic: str) -> str:
        runs.append(topic)
        return f"on {topic}"

    async def review(text: str) -> str:
        return f"{text}: {interrupt({'review': text})}"

    draft_task, review_task = task(api.node(draft), name="draft"), task(api.node(review), name="review")

    async def writing(topic: str) -> dict[str, Any]:
        text = await _result(api, draft_task(topic))
        reviewed = await _result(api, review_task(text))
        return {"text": reviewed, "title": interrupt("title")}

    flow = _entrypoint(api, writing)
    config = api.thread()
    answers, seen = [], []
    for value in ("cats", Command(resume="good"), Command(resume="Cats"), "dogs", Command(resume="better")):
        answers.append(await api.invoke(flow, value, config))
        seen.append(await api.look(flow, config))
    return answers, seen, runs


@scenario("task_fails_and_resumes")
async def task_fails_and_resumes(api: Api) -> Any:
    """One task is retried by its policy, another fails for good once; the next run redoes only the failed one."""
    runs: list[str] = []

    async def steady(n: int) -> int:
        runs.append("steady")
        return n + 1

    async def flaky(n: int) -> int:
        runs.append("flaky")
        if runs.count("flaky") < 3:
            raise ConnectionError("try again")
        return n * 10

    async def broken(n: int) -> int:
        runs.append("broken")
        if runs.count("broken") < 2:
            raise OSError("not today")
        return -n

    policy = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=5)
    steady_task = task(api.node(steady), name="steady")
    flaky_task = task(api.node(flaky), name="flaky", retry_policy=policy)
    broken_task = task(api.node(broken), name="broken")

    async def flow_body(n: int) -> list[int]:
        first = await _result(api, steady_task(n))
        second = await _result(api, flaky_task(first))
        return [first, second, await _result(api, broken_task(second))]

    flow = _entrypoint(api, flow_body)
    config = api.thread()
    failed = await api.attempt(api.invoke(flow, 1, config), OSError)
    seen = await api.look(flow, config)
    answer = await api.invoke(flow, None, config)
    return failed, seen, answer, runs, await api.look(flow, config)


@scenario("tasks_in_a_graph")
async def tasks_in_a_graph(api: Api) -> Any:
    """A graph node that calls tasks, one of which runs an entrypoint as a subgraph."""

    async def double(n: int) -> int:
        return 2 * n

    async def below(n: int) -> int:
        return n + 100

    double_task = task(api.node(double), name="double")
    nested = entrypoint()(api.node(below))

    async def call_below(n: int) -> int:
        return await api.inner.invoke(nested, n)

    below_task = task(api.node(call_below), name="call_below")

    async def node(state: dict[str, Any]) -> dict[str, Any]:
        futures = [double_task(n) for n in range(3)]
        found = [await _result(api, future) for future in futures]
        return {"found": found, "below": await _result(api, below_task(7))}

    graph = api.compile(api.chain(dict, node))
    config = api.thread()
    answers = [await api.invoke(graph, {"n": n}, config) for n in range(2)]
    return answers, await api.look(graph, config)
