"""Makes one golden database, with the LangGraph that runs it: python make.py FILE, or python make.py POSTGRES-URL.

A thread for each of `graphs.GRAPHS`, each stopped in the middle of its work.
"""

import sqlite3
import sys
from contextlib import closing
from typing import Any

from graphs import GRAPHS
from langchain_core.messages import HumanMessage


def main(place: str) -> None:
    if "://" in place:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(place) as saver:
            saver.setup()
            fill(saver)
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with closing(sqlite3.connect(place, check_same_thread=False)) as connection:
        connection.execute("PRAGMA page_size = 1024")  # there is little in it
        fill(SqliteSaver(connection))


def fill(saver: Any) -> None:
    for name, graph_of in GRAPHS.items():
        graph = graph_of(saver)
        config = {"configurable": {"thread_id": name}}
        graph.invoke({"messages": [HumanMessage("begin", id="begin")], "done": []}, config)
        if name == "forked":
            before = next(state.config for state in graph.get_state_history(config) if state.next == ("think",))
            graph.update_state(before, {"messages": [HumanMessage("changed", id="begin")]})
            graph.invoke(None, config)


main(*sys.argv[1:])
