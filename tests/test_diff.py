"""What differs between two checkpoints, four ways."""

import asyncio
import operator
import random
from collections.abc import Callable, Sequence
from difflib import unified_diff
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph

from langgraph_ledger import Diff, comparing, unified
from langgraph_ledger.errors import InvalidInput, UnknownCheckpoint
from tests.direct import at, save
from tests.four_ways import Flavoured


class State(TypedDict):
    notes: Annotated[list[Any], operator.add]
    data: bytes


def graph_of(four: Flavoured) -> Any:
    inner = StateGraph(State).add_node("deep", lambda state: {"data": b"two"}).add_edge(START, "deep").compile()
    builder = StateGraph(State).add_sequence(
        [("write", lambda state: {"notes": [HumanMessage("hi", id="m")], "data": b"one"}), ("inner", inner)]
    )
    return builder.add_edge(START, "write").compile(checkpointer=four.saver)


def diff(four: Flavoured, *ids: str, **options: Any) -> Diff:
    found: Diff = four.call("diff", "t", *ids, **options)
    return found


@pytest.mark.parametrize("encrypted", [False, True])
def test_two_checkpoints(open_four: Callable[..., Flavoured], encrypted: bool) -> None:
    four = open_four(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16) if encrypted else None)
    four.invoke(graph_of(four), {"notes": ["a"]}, at("t"))
    _, begun, written, ended = [e.checkpoint_id for e in four.call("history", "t") if not e.agent_id]
    found = diff(four, begun, written)
    assert set(found.changes) == {"notes", "data"}
    assert found.changes["notes"][1:3] == (" [", '-  "a"')
    assert '+    "$type": "langchain_core.messages.human.HumanMessage",' in found.changes["notes"]
    assert '+    "content": "hi",' in found.changes["notes"]
    assert str(found).startswith("data:\n  @@")
    assert '<span class="lgl-good">+    &quot;content&quot;: &quot;hi&quot;,</span>' in found._repr_html_()

    other = diff(four, written)
    assert (other.before, other.after) == (written, ended)
    assert '"$length": 3' in str(other), "values of one length are told from one another"
    assert set(other.changes) == {"notes", "data"}
    assert other.to_dict() == {name: list(lines) for name, lines in other.changes.items()}

    same = diff(four, written, written)
    assert (same.changes, str(same)) == ({}, "no difference")


def test_in_a_subgraph_and_what_is_not_there(four: Flavoured) -> None:
    four.invoke(graph_of(four), {"notes": ["a"]}, at("t"))
    nested = [e for e in four.call("history", "t") if e.agent_id]
    found = diff(four, str(nested[0].checkpoint_id), checkpoint_ns=nested[0].agent_id)
    assert list(found.changes) == ["data", "notes"]
    with pytest.raises(UnknownCheckpoint, match="thread 't' has no checkpoint 'none' in namespace ''"):
        diff(four, "none")
    with pytest.raises(UnknownCheckpoint, match="thread 'nobody' has no"):
        four.call("diff", "nobody", "none")
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        diff(four, 1.5)  # type: ignore[arg-type]


def test_separators_that_are_no_ends_of_lines(four: Flavoured) -> None:
    """JSON has them as they are: lines are ended by nothing but U+000A."""
    places = [save(four, at("t"), "1", {"text": "a\x85b"})]
    for number, mark in enumerate("\u2028\u2029", 2):
        places.append(save(four, places[-1], str(number), {"text": f"a{mark}b"}))
    assert diff(four, "1", "2").changes == {"text": ("@@ -1 +1 @@", '-"a\x85b"', '+"a\u2028b"')}
    assert str(diff(four, "2", "3")).splitlines()[2:] == ['  -"a\\u2028b"', '  +"a\\u2029b"']


class Spoken(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda old, new: [*(old or ()), *new], snapshot_frequency=3)]


def test_a_delta_channel_that_a_checkpoint_does_not_hold_whole(four: Flavoured) -> None:
    """It is named, and not said to have gone or come."""
    builder = StateGraph(Spoken).add_node("say", lambda state: {"log": "said"}).add_edge(START, "say")
    for _ in range(3):
        four.invoke(builder.compile(checkpointer=four.saver), {"log": "heard"}, at("t"))
    found = four.list(at("t"))[::-1]
    states = {item.checkpoint["id"]: item.checkpoint for item in found}
    whole = [i for i, state in states.items() if "log" in state["channel_values"]]
    empty, *written = [i for i in states if i not in whole]
    assert "log" not in states[empty]["channel_versions"]
    assert len(whole) == 2
    both = diff(four, *whole)
    assert (list(both.changes), both.not_compared) == (["log"], ())
    assert list(diff(four, empty, whole[0]).changes) == ["log"], "it holds nothing, and all of that"
    for pair in ((whole[0], written[-1]), (written[0], whole[1]), (written[0], written[-1])):
        part = diff(four, *pair)
        assert (part.changes, part.not_compared) == ({}, ("log",))
        said = "log: not compared, for not both checkpoints hold it whole"
        assert str(part) == f"no difference\n{said}"
        assert said in part._repr_html_()


def test_a_delta_channel_that_is_not_in_the_metadata(four: Flavoured) -> None:
    """LangGraph before 1.2.13 leaves them out where a checkpoint is made by `update_state`, or as a copy."""
    builder = StateGraph(Spoken).add_node("say", lambda state: {"log": "said"}).add_edge(START, "say")
    for _ in range(3):
        four.invoke(builder.compile(checkpointer=four.saver), {"log": "heard"}, at("t"))
    found = [item for item in four.list(at("t")) if "log" in item.checkpoint["channel_versions"]]
    whole = next(item.checkpoint["id"] for item in found if "log" in item.checkpoint["channel_values"])
    parent = next(item for item in found if "log" not in item.checkpoint["channel_values"])
    copy = parent.checkpoint | {"id": str(uuid6())}
    four.put(parent.config, copy, {"source": "fork", "step": 9, "parents": {}}, {})
    part = diff(four, whole, copy["id"])
    assert (part.changes, part.not_compared) == ({}, ("log",))


def test_large_values_do_not_hold_up_the_event_loop(four: Flavoured, monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = []

    def compared(old: Any, new: Any) -> Any:
        on_loop.append(asyncio._get_running_loop() is not None)
        return unified_diff(old, new)

    place = save(four, at("t"), "1", {"rows": [1]})
    save(four, place, "2", {"rows": [2]})
    monkeypatch.setattr(comparing, "unified", compared)
    assert diff(four, "1", "2").changes
    assert on_loop == [False]


def applied(old: Sequence[str], hunks: Sequence[str]) -> list[str]:
    """The text that `patch` makes of the old one; every line that is kept or goes has to be there."""
    found, place = list[str](), 0
    for line in hunks:
        if line.startswith("@@"):
            begin, _, count = line.split()[1][1:].partition(",")
            start = int(begin) - (count != "0")
            found, place = [*found, *old[place:start]], start
        elif line[0] == "+":
            found.append(line[1:])
        else:
            assert old[place] == line[1:]
            found, place = [*found, *([line[1:]] if line[0] == " " else [])], place + 1
    return [*found, *old[place:]]


@pytest.mark.parametrize("most", [0, 300, 10**9])
def test_the_lines_lead_from_one_text_to_the_other(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unified, "MOST_WORK", most)
    choose = random.Random(1)
    for size in (0, 1, 2, 5, 30, 300):
        for _ in range(20):
            old = [choose.choice("abcdefgh") * choose.randint(1, 9) for _ in range(size)]
            new = [line for line in old if choose.random() < 0.9] + ["x"] * choose.randint(0, 2)
            choose.choice([new, []]).reverse()
            hunks = list(unified.unified(old, new))
            assert applied(old, hunks) == new
            if most == 10**9:
                assert hunks == [*unified_diff(old, new, lineterm="", n=2)][2:]


def test_the_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both texts begin and end with is seen even then."""
    looked = 0

    class Counted(str):
        def __hash__(self) -> int:
            nonlocal looked
            looked += 1
            return super().__hash__()

    def text(step: int) -> list[str]:
        lines = [Counted(f"{(i * step) % 100}") for i in range(5000)]
        return [Counted("begin"), *lines, Counted("end")]

    monkeypatch.setattr(unified, "MOST_WORK", 100_000)
    found = list(unified.unified(text(3), text(7)))
    assert looked < 200_000
    assert found[:2] == ["@@ -1,5002 +1,5002 @@", " begin"]
    assert found[-1] == " end"
