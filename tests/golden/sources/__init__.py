"""Databases that old versions of the official savers have made, to be moved from, and what makes them.

`sqlite-*.db` are files as SqliteSaver left them, `postgres-*.sql` dumps of what PostgresSaver left. They are never
changed: a new version is a new line below, and `build` makes what is not there.
"""

from pathlib import Path

FOLDER = Path(__file__).parent

VERSIONS = {
    # Values and checkpoints as JSON.
    "1.0.0": (
        "langgraph==0.2.16",
        "langgraph-checkpoint==1.0.9",
        "langgraph-checkpoint-sqlite==1.0.0",
        "langgraph-checkpoint-postgres==1.0.1",  # 1.0.0 cannot store messages
    ),
    # msgpack, with classes that LangGraph has moved since.
    "1.0.3": (
        "langgraph==0.2.22",
        "langgraph-checkpoint==1.0.12",
        "langgraph-checkpoint-sqlite==1.0.3",
        "langgraph-checkpoint-postgres==1.0.7",
    ),
    # What is to be run next is a part of the checkpoint (SQLite), or among its parent's writes (Postgres).
    "2.0.1": (
        "langgraph==0.2.60",
        "langgraph-checkpoint==2.0.9",
        "langgraph-checkpoint-sqlite==2.0.1",
        "langgraph-checkpoint-postgres==2.0.9",
    ),
    # The writes of tasks have a path on Postgres.
    "2.0.6": (
        "langgraph==0.3.34",
        "langgraph-checkpoint==2.0.24",
        "langgraph-checkpoint-sqlite==2.0.6",
        "langgraph-checkpoint-postgres==2.0.20",
    ),
    # Checkpoints of format 4, where what is to be run next is a channel.
    "2.0.11": (
        "langgraph==0.6.11",
        "langgraph-checkpoint==2.1.2",
        "langgraph-checkpoint-sqlite==2.0.11",
        "langgraph-checkpoint-postgres==2.0.25",
    ),
    "3.0.3": (
        "langgraph==1.0.10",
        "langgraph-checkpoint==4.0.0",
        "langgraph-checkpoint-sqlite==3.0.3",
        "langgraph-checkpoint-postgres==3.0.4",
    ),
}
"""What is installed to make each, under the version of SqliteSaver. The current versions are tested as they are."""
