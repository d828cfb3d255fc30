"""Lines of lgledger as documents show them, run in the process that runs the document's Python."""

import os
import shlex


def run(line: str) -> None:
    """Runs one; what it exits with is 0, or 3 where there is something to look at."""
    from langgraph_ledger.cli.app import app

    command, *arguments = shlex.split(line, comments=True)
    if command == "export":
        name, _, value = arguments[0].partition("=")
        os.environ[name] = value
        return
    try:
        app(arguments, prog_name=command)
    except SystemExit as end:
        if end.code not in (0, 3):
            raise RuntimeError(f"{line}: {end.code}") from end
