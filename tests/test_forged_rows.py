"""Rows that nobody's saver has written, their digests in order: each is refused with its place, none is believed in
what it claims, and nothing that is not allowed is executed or made."""

import hashlib
import itertools
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import lz4.block
import ormsgpack
import pytest
import zstandard
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V2,
)
from langgraph.types import interrupt

from langgraph_ledger.errors import InvalidInput, ValueNotRestorable, ValueNotStorable
from langgraph_ledger.places import Body, Place, Ref, body_label, pack_body, unpack_body
from langgraph_ledger.vault import INDEX, PART, PlainVault
from tests.direct import at, query, save, shared_backend
from tests.forging import STRICT, VAULT, Rows, chunk, packed
from tests.four_ways import Backend, Flavoured
from tests.recovery.stage import agent, call, made

backend = shared_backend

Make = Callable[[Rows], Place]
MARKER = "a directory that a forged value would make"


def extension(code: int, *parts: Any) -> bytes:
    return packed(ormsgpack.Ext(code, packed(parts)))


def rope(*pieces: Any) -> Place:
    return Place("msgpack", None, pieces)


def bomb(rows: Rows) -> Place:
    """Sixty rows that claim 2 ** 60 chunks."""
    ref = chunk(rows, b"x" * 100)
    for _ in range(60):
        ref = chunk(rows, packed([-1, -1] if ref.is_index else [2]), ref.memory_id * 2, INDEX)
    return rope(ref)


def empty_bomb(rows: Rows) -> Place:
    """As many pieces, and nothing in any of them."""
    ref = chunk(rows, packed([b""]), b"", INDEX)
    for _ in range(60):
        ref = chunk(rows, packed([-1, -1]), ref.memory_id * 2, INDEX)
    return rope(ref)


def chain(rows: Rows) -> Place:
    ref = chunk(rows, packed([b"x"]), b"", INDEX)
    for _ in range(1200):
        ref = chunk(rows, packed([-1]), ref.memory_id, INDEX)
    return rope(ref)


def cycle(rows: Rows) -> Place:
    """Two rows that name each other; of one of them the digest has to be wrong."""
    first, second = hashlib.sha256(b"1").digest()[:16], hashlib.sha256(b"2").digest()[:16]
    first, second = bytes((first[0] & 0x7F,)) + first[1:], bytes((second[0] & 0x7F,)) + second[1:]
    rows[first], rows[second] = (INDEX, packed([-1]), second), (INDEX, packed([-1]), first)
    return rope(Ref(first, True))


def stored(content: bytes, encoding: str = PART, plain: bytes | None = None, children: bytes = b"") -> Make:
    """A value in one row."""
    return lambda rows: rope(chunk(rows, content, children, encoding.partition("+")[0], encoding, plain))


def lz4_of(content: bytes, plain: bytes = b"") -> Make:
    return stored(content, "part+lz4", plain)


def zstd_of(content: bytes, plain: bytes = b"") -> Make:
    return stored(content, "part+zstd", plain)


def here(encoding: Any, content: bytes) -> Make:
    """A value in the body itself."""
    return lambda rows: Place(encoding, content)


def calling(code: int, *parts: Any) -> Make:
    return here("msgpack", extension(code, *parts))


TERABYTES = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**42) + b"\x01\x00\x00"
SIZELESS = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 99)
INSIDE = b"\x91" + extension(
    EXT_CONSTRUCTOR_SINGLE_ARG, "builtins", "set", [ormsgpack.Ext(0, packed(["os", "abort", 1]))]
)
MEMORY: dict[str, tuple[Make, str]] = {
    "LZ4 that claims 2 GB": (lz4_of(b"\xff\xff\xff\x7f" + b"a" * 20), "value_limit"),
    "LZ4 that claims too much": (lz4_of(struct.pack("<I", 60_000) + b"a" * 20), "cannot be 60,000"),
    "LZ4 that is a bomb": (lz4_of(lz4.block.compress(bytes(200_000)), bytes(200_000)), "value_limit"),
    "LZ4 of nothing": (lz4_of(b"\0"), "damaged"),
    "zstd that claims terabytes": (zstd_of(TERABYTES), "value_limit"),
    "zstd that is a bomb": (zstd_of(zstandard.compress(bytes(10**6)), bytes(10**6)), "value_limit"),
    "zstd of no known size": (zstd_of(SIZELESS, b"x" * 99), "damaged"),
    "zstd that is none": (zstd_of(b"no frame"), "damaged"),
    "a codec that is none": (stored(b"\xc0", "part+rot13"), "digest"),
    "a rope that claims an exabyte": (bomb, "value_limit"),
    "a rope of nothing": (empty_bomb, "too many pieces"),
    "a rope that is too deep": (chain, "too deep"),
    "a rope that is a cycle": (cycle, "digest"),
    "an index that is no shape": (stored(b"\xc1", INDEX), "damaged"),
    "an index without its ids": (stored(packed([3]), INDEX, children=bytes(16)), "id is missing"),
    "an index with ids too many": (stored(packed([b"x"]), INDEX, children=bytes(32)), "no piece takes"),
    "an index of half an id": (stored(packed([b"x"]), INDEX, children=bytes(8)), "no piece takes"),
    "an index of a negative number": (stored(packed([-7]), INDEX, children=bytes(16)), "no piece"),
    "a chunk that is not there": (lambda rows: rope(Ref(b"\xff" * 16)), "is missing"),
    "a place without pieces": (lambda rows: rope(), "no pieces"),
    "msgpack that claims four billion": (here("msgpack", b"\xdd\xff\xff\xff\xff"), "cannot be restored"),
    "msgpack that ends too early": (stored(b"\x92\x01"), "cannot be restored"),
    "msgpack that is too deep": (stored(b"\x91" * 50_000), "cannot be restored"),
    "an encoding that is none": (here("yaml", b"!!python/object/apply:os.abort []"), "cannot be restored"),
    "an encoding that is no text": (here(7, b""), "no place"),
    "a pickle": (here("pickle", f"cos\nmkdir\n(S'{MARKER}'\ntR.".encode()), "cannot be restored"),
    "a function": (calling(EXT_CONSTRUCTOR_POS_ARGS, "os", "mkdir", [MARKER]), "os.mkdir"),
    "a function with names": (calling(EXT_CONSTRUCTOR_KW_ARGS, "os", "mkdir", {"path": MARKER}), "os.mkdir"),
    "code": (calling(EXT_CONSTRUCTOR_SINGLE_ARG, "builtins", "eval", f"__import__('os').mkdir('{MARKER}')"), "eval"),
    "a method": (calling(EXT_METHOD_SINGLE_ARG, "pathlib", "Path", MARKER, "touch"), "pathlib.Path.touch"),
    "a model": (calling(EXT_PYDANTIC_V2, "subprocess", "Popen", {"args": ["true"]}, "x"), "subprocess.Popen"),
    "a function inside of a set": (here("msgpack", INSIDE), "os.abort"),
}  # fmt: skip
"""What a channel's value may be said to be, and a word of the error."""


def write_rows(backend: Backend, thread: str, place: Place, rows: Rows) -> None:
    """Puts a value in the place of the one that is there, as who can write to the database may do."""
    whole = PlainVault(STRICT)
    ((body,),) = query(backend, "SELECT body FROM checkpoint_log WHERE session_id = ? AND agent_id = 'sub'", thread)
    label = body_label("sub", "c1")
    found = unpack_body(whole, bytes(body), label, lambda: "here")
    forged = Body(found.checkpoint, found.metadata, {"told": place})
    query(
        backend,
        "UPDATE checkpoint_log SET body = ?, memory_ids = ? WHERE session_id = ? AND agent_id = 'sub'",
        pack_body(whole, forged, label), forged.memory_ids, thread,
    )  # fmt: skip
    made = [(thread, memory_id, encoding, 0, *rest) for memory_id, (encoding, *rest) in rows.items()]
    statement = (
        "INSERT INTO agent_memory (session_id, memory_id, encoding, plain_bytes, content, children)"
        f" VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * len(made))}"
    )
    if made:
        query(backend, statement, *itertools.chain.from_iterable(made))


def test_a_forged_value(
    open_four: Callable[..., Flavoured], backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    four = open_four(serde=STRICT, value_limit=100_000)
    for name, (make, words) in MEMORY.items():
        thread, rows = str(uuid4()), dict[bytes, Any]()
        save(four, at(thread, ns="sub"), "c1", {"told": 1})
        write_rows(backend, thread, make(rows), rows)
        where = at(thread, ns="sub")
        reads: list[Callable[[], Any]] = [lambda w=where: four.get_tuple(w), lambda w=where: four.list(w)]
        for read in reads if len(rows) < 1000 else reads[:1]:
            with pytest.raises(ValueNotRestorable) as caught:
                read()
            for word in (words, thread, "'sub'", "'c1'"):
                assert word in str(caught.value), (name, str(caught.value))
        four.call("verify", thread)
    assert list(tmp_path.glob("*")) == []


def sealed(label: str, value: Any) -> bytes:
    return VAULT.seal(b"b\0" + (value if isinstance(value, bytes) else packed(value)), label)


FINE, NOTHING = ["msgpack", packed({"v": 4, "id": "c1", "channel_versions": {}})], ["msgpack", packed({})]
BODIES: dict[str, Any] = {
    "no bytes": b"", "no msgpack": b"\xc1", "no list": 7,
    "too short": [1, FINE, NOTHING, {}], "of the future": [2, FINE, NOTHING, {}, []],
    "a checkpoint that is a number": [1, ["msgpack", packed(5)], NOTHING, {}, []],
    "a checkpoint without an id": [1, NOTHING, NOTHING, {}, []],
    "a checkpoint of nothing": [1, ["null", b""], NOTHING, {}, []],
    "a checkpoint that is text": [1, ["msgpack", "text"], NOTHING, {}, []],
    "metadata that is a list": [1, FINE, ["msgpack", packed([])], {}, []],
    "versions that are a list": [1, ["msgpack", packed({"id": "c1", "channel_versions": [1]})], NOTHING, {}, []],
    "places that are a list": [1, FINE, NOTHING, [1], []], "a place that is a number": [1, FINE, NOTHING, {"a": 1}, []],
    "deltas that are a number": [1, FINE, NOTHING, {}, 5],
    "LZ4 that claims 2 GB": b"b+lz4\0\xff\xff\xff\x7faaaa",
}  # fmt: skip


def test_a_forged_body(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    four = open_four(serde=STRICT)
    for name, value in BODIES.items():
        thread = str(uuid4())
        save(four, at(thread), "c1", {"told": 1})
        body = sealed(body_label("", "c1"), value)
        if name == "LZ4 that claims 2 GB":
            body = VAULT.seal(value, body_label("", "c1"))
        query(backend, "UPDATE checkpoint_log SET body = ? WHERE session_id = ?", body, thread)
        reads: list[Callable[[], Any]] = [lambda t=thread: four.get_tuple(at(t)), lambda t=thread: four.list(at(t))]
        for read in reads:
            with pytest.raises(ValueNotRestorable) as caught:
                pytest.fail(f"{name}: {read()!r}")
            assert thread in str(caught.value), name
            assert "'c1'" in str(caught.value), name
        four.call("verify", thread)
        with suppress(ValueNotRestorable):  # which may need less of it
            four.call("recover", thread)


def test_forged_columns(four: Flavoured, backend: Backend) -> None:
    """What other columns say is believed no more; who owns a thread nobody can say then."""
    thread = str(uuid4())
    save(four, at(thread), "c1", {"told": ["x" * 500]})
    ((body, ids),) = query(backend, "SELECT body, memory_ids FROM checkpoint_log WHERE session_id = ?", thread)
    assert len(ids) == 16
    query(backend, "UPDATE agent_state_ledger SET owner = '[7]' WHERE session_id = ?", thread)
    assert [s.session_id for s in four.call("recoverable") if s.session_id == thread] in ([], [thread])
    other = str(uuid4())
    save(four, at(other), "c1")
    query(backend, "UPDATE checkpoint_log SET body = ?, memory_ids = ? WHERE session_id = ?", body, ids, other)
    with pytest.raises(ValueNotRestorable, match=f"{other}.*channel 'told'.*is missing"):
        four.get_tuple(at(other))
    query(backend, "UPDATE checkpoint_log SET parent_checkpoint_id = 'c1' WHERE session_id = ?", thread)
    assert four.call("ancestors", at(thread)) == ["c1"]
    with pytest.raises(ValueNotRestorable, match=f"{thread}.*in a circle"):
        four.call("get_delta_channel_history", config=at(thread), channels=["x"])
    assert four.call("prune", [thread], keep_last=1) is not None
    if backend.kind == "sqlite":  # Postgres takes nothing else
        query(backend, "UPDATE checkpoint_log SET body = 'text', payload = '{' WHERE session_id = ?", thread)
        query(backend, "UPDATE sessions SET metadata = 'no JSON' WHERE session_id = ?", thread)
        reads: list[Callable[[], Any]] = [
            lambda: four.get_tuple(at(thread)), lambda: four.call("history", thread), lambda: four.call("sessions"),
        ]  # fmt: skip
        for read in reads:
            with pytest.raises(ValueNotRestorable, match=thread):
                read()
        query(backend, "DELETE FROM sessions WHERE session_id = ?", thread)


ODD = {"parents": {"x": []}, "last_committed": [1], "checkpoint_read": {}, "source": [], "step": {}, "message": 7}
"""What no entry of a log says, and none may take for an id."""
SHAPES = [("sessions", "metadata", "[]"), ("sessions", "outcome", "7"), ("checkpoint_log", "payload", "[]")]
NO_JSON = [("sessions", "metadata", "{"), ("sessions", "outcome", "[" * 10**5), ("checkpoint_log", "payload", "{")]


def ask(what: str) -> Any:
    return interrupt(what)


def test_json_that_is_damaged(four: Flavoured, backend: Backend) -> None:
    """Whoever reads it is told where it is; of what is merely odd a picture is made."""
    thread = str(uuid4())
    graph = agent(four.saver, [made(four, ask)], [call("why?", "c1")])
    four.invoke(graph, {"messages": ["hello"]}, at(thread))
    for table, column, text in SHAPES + (NO_JSON if backend.kind == "sqlite" else []):  # Postgres takes no other text
        query(backend, f"UPDATE {table} SET {column} = ? WHERE session_id = ?", text, thread)
        for method in ("sessions", "recover") if table == "sessions" else ("history", "recover"):
            with pytest.raises(ValueNotRestorable, match=f"thread '{thread}', .*damaged: "):
                four.call(method, *([] if method == "sessions" else [thread]))
        query(backend, f"UPDATE {table} SET {column} = '{{}}' WHERE session_id = ?", thread)
    for kind in ("checkpoint", "write_rejected"):
        odd = "UPDATE checkpoint_log SET payload = ?, checkpoint_type = ? WHERE session_id = ? AND checkpoint_type = ?"
        query(backend, odd, json.dumps(ODD), kind, thread, "checkpoint")
        found = four.call("history", thread)
        assert thread in str(found)
        assert "svg" in found._repr_html_()
    assert thread in str(four.call("rejected_writes", thread))
    query(backend, "DELETE FROM checkpoint_log WHERE session_id = ?", thread)


def test_a_value_over_the_limit(open_four: Callable[..., Flavoured], backend: Backend) -> None:
    """Whoever may not read it may not write it either."""
    four, wide = open_four(value_limit=5000), open_four()
    thread = str(uuid4())
    words = r"channel 'a': the value takes 5,\d+ bytes, more than value_limit=5,000"
    for value in ("x" * 5001, ["y" * 600] * 9, {"a": ["z" * 2500] * 2}, b"b" * 5001):
        with pytest.raises(ValueNotStorable, match=words):
            save(four, at(thread), "1", {"a": value})
    save(four, at(thread), "1", {"a": "x" * 4990})
    assert four.get_tuple(at(thread)).checkpoint["channel_values"]["a"] == "x" * 4990
    last = save(wide, at(str(uuid4())), "1", {"a": ["y" * 600] * 9})
    with pytest.raises(ValueNotRestorable, match="channel 'a': the stored value takes more than value_limit=5,000"):
        four.get_tuple(last)
    for wrong in (0, -1, True, 1.5, "5"):
        with pytest.raises(InvalidInput, match="value_limit"):
            open_four(value_limit=wrong)
