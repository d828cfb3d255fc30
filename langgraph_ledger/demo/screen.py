"""What the demo shows: a live progress display on a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


class Screen:
    """Prints lines and tables; `working` shows progress while it is open."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = self._console.is_terminal
        if not self._live and "COLUMNS" not in os.environ:
            # Without a terminal rich assumes 80 columns, which would break the tables' cells into pieces.
            self._console = Console(highlight=False, width=120)
        self._progress: Progress | None = None

    def title(self, text: str) -> None:
        """Begin a part."""
        self._console.print(f"\n[bold]{escape(text)}[/bold]")

    def say(self, text: str) -> None:
        """One thing that happened, or that was found out."""
        self._line(escape(text))

    def good(self, text: str) -> None:
        """A claim that holds."""
        self._line(f"[green]ok[/green]  {escape(text)}")

    def bad(self, text: str) -> None:
        """A claim that does not hold, or the reason why the demo ended early."""
        self._line(f"[bold red]FAILED[/bold red]  {escape(text)}")

    @contextmanager
    def working(self, text: str, total: int | None = None) -> Iterator[None]:
        """Show progress, towards `total` steps where that is known."""
        columns = [SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
        if total is not None:
            columns[2:2] = [BarColumn(), MofNCompleteColumn()]
        with Progress(*columns, console=self._console, transient=True, disable=not self._live) as self._progress:
            self._progress.add_task(text, total=total)
            try:
                yield
            finally:
                self._progress = None

    def progress(self, text: str, completed: int) -> None:
        """What is going on, and how many steps are done."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=text, completed=completed)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table under a title."""
        self._console.print()
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        self._console.print(table)

    def _line(self, markup: str) -> None:
        # Whoever reads the output from a pipe wants a line to be a line.
        self._console.print(f"  {markup}", soft_wrap=not self._live)
