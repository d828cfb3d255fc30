"""The commands, put together: each module adds its own."""

from __future__ import annotations

from typing import Annotated

import typer

from langgraph_ledger.cli import investigate, look, moving, upkeep

app = typer.Typer(
    help="Look into the threads of LangGraph agents that a ledger keeps, and look after them.\n\n"
    "The ledger is named by --url or by LANGGRAPH_LEDGER_URL: a SQLite file or a Postgres URL. Most commands"
    " take --json. Exit codes: 0 all is well, 1 it failed, 2 wrong usage, 3 there is something to look at.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for module in (look, investigate, upkeep, moving):
    module.add_to(app)


@app.command(rich_help_panel="Getting to know it")
def demo(
    url: Annotated[
        str | None,
        typer.Option(help="A SQLite file or a Postgres URL. Without it: a SQLite file, removed at the end."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo's threads in the database.")] = False,
) -> None:
    """Kill a working agent and see it resume, then let two workers collide on one thread."""
    from langgraph_ledger.demo.show import run_demo

    raise typer.Exit(run_demo(url, keep))
