"""The command line: `lgledger`, which is also `python -m langgraph_ledger`.

Typer and rich are extras, so nothing here imports them before it is known that they are there.
"""

import importlib.util
import sys
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

MISSING = "The command line needs typer and rich: install with pip install 'langgraph-checkpoint-ledger[cli]'"


def main() -> None:
    """Run the command line and exit with its code."""
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        print(MISSING, file=sys.stderr)
        raise SystemExit(1)
    build_app()()


def build_app() -> "typer.Typer":
    """The commands."""
    import typer

    app = typer.Typer(
        help="Version-checked, crash-safe checkpoints for LangGraph.", no_args_is_help=True, add_completion=False
    )

    # Without a callback typer would make a single command the whole program, and `demo` would not be a word.
    @app.callback()
    def root() -> None:
        pass

    @app.command()
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

    return app
