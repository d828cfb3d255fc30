"""Every notebook runs from top to bottom, offline, and shows what is stored in it.

`python -m tests.test_notebooks` runs them and stores what they show; with names, such as `02_two_writers`, only those.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.postgres_server import own_server

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


class ThisPython(KernelSpecManager):
    """The one kernel there is: the interpreter that runs the tests, whatever else is installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python", name=kernel_name)


class Kernel(AsyncKernelManager):
    """A kernel of this Python."""

    def __init__(self, **options: Any) -> None:
        super().__init__(kernel_spec_manager=ThisPython(), **options)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets variables, for the kernel to inherit, and puts back what was there."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def execute(notebook: Any, folder: Path) -> Any:
    """Runs a copy of a notebook; `folder` takes all that the kernel writes. Raises if a cell does."""
    places = {name: folder / name for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "work")}
    for place in places.values():
        place.mkdir()
    work = places.pop("work")
    copy = nbformat.from_dict(notebook)
    with environment(
        **{name: str(place) for name, place in places.items()},
        PYTHONPATH=str(ROOT),
        LANGSMITH_TRACING="false",
        # No address beyond this machine can be reached by what asks for proxies.
        HTTPS_PROXY="http://127.0.0.1:9",
        HTTP_PROXY="http://127.0.0.1:9",
        JUPYTER_PLATFORM_DIRS="1",
    ):
        NotebookClient(
            copy,
            kernel_manager_class=Kernel,
            resources={"metadata": {"path": str(work)}},
            timeout=60,
            coalesce_streams=True,
        ).execute()
    assert list(work.iterdir()) == [], "the notebook leaves files in its folder"
    assert list(places["TMPDIR"].iterdir()) == [], "the notebook leaves temporary files"
    return copy


DIFFERENT = {
    "TIME": r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?",
    "ID": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "TOKEN": r"\b([0-9a-f]{8}|[0-9a-f]{32})\b",
    "VERSION": r"(version found: |'version_found': |'write_rejected', |\bfound |\bread version |thread is at )[1-9]\d*",
}
"""What is another one each time. Versions are where saves of one run have shared a commit, on a busy machine say."""


def shown(notebook: Any) -> list[str]:
    """What each code cell shows, as text and as HTML. Pictures differ from machine to machine."""
    return [
        "\n".join(_same(part) for output in cell.outputs for part in _parts(output))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _parts(output: Any) -> list[str]:
    if output.output_type == "stream":
        return [output["text"]]
    return [output.get("data", {}).get(kind, "") for kind in ("text/plain", "text/html")]


def _same(text: str) -> str:
    for name, pattern in DIFFERENT.items():
        text = re.sub(pattern, name, text)
    return text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_shows_what_is_stored_in_it(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = nbformat.read(path, as_version=4)
    if "postgres" in path.name:  # the server that other tests use too
        monkeypatch.setenv("LANGGRAPH_LEDGER_TEST_POSTGRES", request.getfixturevalue("postgres_url"))
    executed = execute(stored, tmp_path)
    assert shown(executed) == shown(stored)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_was_run_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert any(shown(notebook))


def test_there_is_one() -> None:
    assert NOTEBOOKS


def store(path: Path) -> None:
    """Runs a notebook and keeps what it shows."""
    stored = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        executed = execute(stored, Path(folder))
    for cell in executed.cells:
        cell.metadata = {}  # when it was run is no news
    executed.metadata = stored.metadata
    nbformat.write(executed, path)


if __name__ == "__main__":
    with own_server() as server, environment(LANGGRAPH_LEDGER_TEST_POSTGRES=server):
        for notebook in NOTEBOOKS:
            if notebook.stem in sys.argv[1:] or not sys.argv[1:]:
                store(notebook)
