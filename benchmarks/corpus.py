"""Conversations that compress as real ones do, the same in every run.

Prose is the Python language reference and docstrings of the standard library, code is its source, tool output is JSON
records and log lines with random ids. Every excerpt is used once, so that nothing repeats but what repeats in real
conversations too: the envelopes of messages, JSON keys, markdown.
"""

import ast
import functools
import json
import random
import re
import sysconfig
import uuid
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

TOOLS = ["search_documents", "run_sql", "fetch_url", "read_file", "create_ticket"]
PACKAGES = (
    "", "asyncio", "unittest", "email", "logging", "http", "importlib", "multiprocessing", "distutils", "idlelib",
)  # fmt: skip

Turn = tuple[HumanMessage, AIMessage]


@functools.cache
def _pools() -> tuple[list[str], list[str]]:
    """Paragraphs of prose, and functions, in a fixed order."""
    prose = [part for topic in topics.values() for part in topic.split("\n\n")]
    code = []
    for package in PACKAGES:
        for path in sorted((Path(sysconfig.get_paths()["stdlib"]) / package).glob("*.py")):
            source = path.read_text(encoding="utf-8", errors="ignore")
            lines = source.splitlines()
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
                    prose.extend((ast.get_docstring(node) or "").split("\n\n"))
                if isinstance(node, ast.FunctionDef):
                    code.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    prose = [re.sub(r"[ \n]+", " ", part).strip() for part in prose]
    return sorted({p for p in prose if len(p) > 80}), sorted({c for c in code if 200 < len(c) < 2500})


class Text:
    """A source of text that never gives the same excerpt twice."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        prose, self.code = map(list, _pools())
        self.rng.shuffle(prose)
        self.rng.shuffle(self.code)
        self.text = "\n\n".join(prose)
        self.place = self.function = 0

    def prose(self, size: int) -> str:
        start = self.place % (len(self.text) - size)
        self.place += size
        return self.text[start : start + size]

    def source(self) -> str:
        self.function += 1
        return self.code[self.function % len(self.code)]

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def record(self) -> dict[str, Any]:
        r = self.rng
        return {
            "id": self.uuid(),
            "score": round(r.random(), 6),
            "status": r.choice(["open", "closed", "pending"]),
            "created_at": f"2026-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
            f"T{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}Z",
            "customer": {
                "account": r.randint(10**7, 10**8),
                "region": r.choice(["eu-west-1", "us-east-2", "ap-south-1"]),
            },
            "summary": self.prose(r.randint(40, 160)),
        }

    def log_line(self) -> str:
        r = self.rng
        return (
            f"2026-03-{r.randint(1, 28):02} {r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}"
            f",{r.randint(0, 999):03} {r.choice(['INFO', 'INFO', 'WARNING', 'ERROR'])}"
            f" api.{r.choice(['auth', 'billing', 'worker', 'search'])} request_id={self.uuid()}"
            f" latency_ms={r.randint(1, 4000)} {self.prose(48)!r}"
        )

    def reply(self, size: int) -> str:
        """Markdown: prose, sometimes code, a list."""
        parts = [f"## {self.prose(48)}"]
        if self.rng.random() < 0.5:
            parts.append(f"```python\n{self.source()}\n```")
        parts.append("\n".join(f"- **{self.prose(20)}**: {self.prose(90)}" for _ in range(4)))
        missing = size - sum(map(len, parts))
        return "\n\n".join([self.prose(max(missing, 80)), *parts])[:size]

    def question(self, size: int) -> str:
        """A question, and what was pasted below it."""
        parts = [self.prose(self.rng.randint(60, 300)) + "?"]
        while sum(map(len, parts)) < size:
            kind = self.rng.random()
            if kind < 0.45:
                parts.append(self.prose(900))
            elif kind < 0.65:
                parts.append(self.source())
            elif kind < 0.85:
                parts.append(json.dumps([self.record() for _ in range(4)], indent=2))
            else:
                parts.append("\n".join(self.log_line() for _ in range(6)))
        return "\n\n".join(parts)[:size]

    def turn(self, question_size: float) -> Turn:
        """A message and the model's answer to it, with all that a provider sends along."""
        r = self.rng
        human = HumanMessage(self.question(int(r.uniform(0.3, 1.7) * question_size)), id=self.uuid())
        calls = [
            {
                "name": r.choice(TOOLS),
                "id": f"call_{self.uuid().replace('-', '')[:24]}",
                "args": {
                    "query": self.prose(r.randint(30, 200)),
                    "limit": r.randint(1, 50),
                    "filters": self.record(),
                },
            }
            for _ in range(r.choice([0, 0, 1, 2]))
        ]
        used = (r.randint(500, 90_000), r.randint(300, 1800))
        usage = UsageMetadata(
            input_tokens=used[0],
            output_tokens=used[1],
            total_tokens=sum(used),
            input_token_details={"audio": 0, "cache_read": used[0] // 2},
            output_token_details={"audio": 0, "reasoning": r.randint(0, 300)},
        )
        metadata = {
            "token_usage": {
                "completion_tokens": used[1],
                "prompt_tokens": used[0],
                "total_tokens": sum(used),
                "completion_tokens_details": {
                    "accepted_prediction_tokens": 0,
                    "audio_tokens": 0,
                    "reasoning_tokens": 0,
                },
                "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": used[0] // 2},
            },
            "model_provider": "openai",
            "model_name": "gpt-4.1-2025-04-14",
            "system_fingerprint": "fp_" + self.uuid()[:10],
            "id": "chatcmpl-" + self.uuid().replace("-", ""),
            "service_tier": "default",
            "finish_reason": "tool_calls" if calls else "stop",
            "logprobs": None,
        }
        reply = self.reply(int(r.uniform(1500, 6000)))
        name = f"lc_run--{self.uuid()}"
        return human, AIMessage(reply, id=name, tool_calls=calls, response_metadata=metadata, usage_metadata=usage)


@functools.cache
def conversation(turns: int, megabytes: float) -> list[Turn]:
    """So many turns, of so many megabytes when they are serialised together."""
    dump, target, size = JsonPlusSerializer().dumps_typed, megabytes * 1e6, 5000.0
    for _ in range(4):  # the questions take up what the answers leave of the total
        text = Text(seed=7)
        pairs = [text.turn(size) for _ in range(turns)]
        found = len(dump([message for pair in pairs for message in pair])[1])
        if abs(found - target) < 0.005 * target:
            break
        size = max(200.0, size + (target - found) / turns)
    return pairs


@functools.cache
def short_messages(count: int) -> list[HumanMessage]:
    """So many messages of about half a kilobyte; of a larger number the first are the same."""
    text = Text(seed=11)
    return [HumanMessage(text.prose(320), id=text.uuid()) for _ in range(count)]
