"""The command line: `lgledger`, which is also `python -m langgraph_ledger`.

Typer and rich are extras, so nothing here imports them before it is known that they are there.
"""

import importlib.util
import sys

MISSING = "The command line needs typer and rich: install with pip install 'langgraph-checkpoint-ledger[cli]'"


def main() -> None:
    """Run the command line and exit with its code."""
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        print(MISSING, file=sys.stderr)
        raise SystemExit(1)
    from langgraph_ledger.cli.app import app

    app()
