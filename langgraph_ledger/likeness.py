"""Whether two savers hold the same: checkpoints compared part by part, type for type. Nothing is written here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple, PendingWrite
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
