"""A cold start: the process that loads a thread it has not stored, and says what each part took.

Started by the workload of that name as `python -m benchmarks.cold KEY ADDRESS MESSAGES`.
"""

import time

START = time.perf_counter()  # before the imports that are part of a cold start

import json  # noqa: E402
import sys  # noqa: E402
from contextlib import ExitStack  # noqa: E402
from importlib import import_module  # noqa: E402

from benchmarks import savers  # noqa: E402


def main(key: str, address: str, messages: int) -> None:
    savers.POOL_SIZE = 1  # for this one thread; more connections would only be in each other's way
    contender = savers.CONTENDERS[key]
    marks = [START]
    for module in ("langchain_core.messages", "langgraph.graph", "langgraph.checkpoint.base", "benchmarks.graphs"):
        import_module(module)
    marks.append(time.perf_counter())
    for module in contender.modules:
        import_module(module)
    marks.append(time.perf_counter())
    with ExitStack() as stack:
        saver = stack.enter_context(contender.open(address))
        marks.append(time.perf_counter())
        graph = import_module("benchmarks.graphs").chat(saver, False, [])
        marks.append(time.perf_counter())
        state = graph.get_state({"configurable": {"thread_id": "cold"}})
        marks.append(time.perf_counter())
        assert len(state.values["messages"]) == messages
    names = ("import langgraph", "import", "open", "compile", "load")
    print(json.dumps({name: b - a for name, a, b in zip(names, marks, marks[1:], strict=False)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
