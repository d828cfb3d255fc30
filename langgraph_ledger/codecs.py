"""How bytes are packed: a codec tag behind the encoding says what to undo. Adding a codec means adding it here."""

from __future__ import annotations

from typing import Any, Literal, cast

import lz4.block

from langgraph_ledger.errors import InvalidInput

Compression = Literal["lz4", "zstd", "none"]

COMPRESS_BYTES = 192
"""Bytes below this size are left alone: packing saves too little to pay for itself."""
VALUE_LIMIT = 2**30
"""How many bytes a value may take when serialised, unless the saver is told otherwise."""
MOST = {"lz4": 255, "zstd": 2**15}
"""How many bytes one packed byte can become at most; a frame that claims more lies."""
ENOUGH = 0.95
"""What is packed must not be larger than this part of the plain bytes, or it is kept plain."""

_zstd: dict[str, Any] = {}


def check(compression: str) -> Compression:
    """`compression` if it can be used here."""
    if compression not in ("lz4", "zstd", "none"):
        raise InvalidInput(f"compression={compression!r}: expected 'lz4', 'zstd' or 'none'")
    if compression == "zstd":
        _zstandard()
    return cast("Compression", compression)


def compress(encoding: str, data: bytes, compression: Compression = "lz4") -> tuple[str, bytes]:
    """The bytes as they are stored, packed where it helps, and the encoding with the codec's tag."""
    if len(data) < COMPRESS_BYTES or compression == "none":
        return encoding, data
    packed = lz4.block.compress(data) if compression == "lz4" else _zstandard()["pack"](data)
    return (f"{encoding}+{compression}", packed) if len(packed) < len(data) * ENOUGH else (encoding, data)


def expand(encoding: str, data: bytes, limit: int = VALUE_LIMIT) -> tuple[str, bytes]:
    """What `compress` was given; ValueError, and no room is made for it, if it claims more bytes than `limit`."""
    if encoding.endswith("+lz4"):
        _refuse_claim(int.from_bytes(data[:4], "little"), len(data), MOST["lz4"], limit)
        return encoding[:-4], lz4.block.decompress(data)
    if encoding.endswith("+zstd"):
        zstd = _zstandard()
        _refuse_claim(zstd["claim"](data), len(data), MOST["zstd"], limit)
        return encoding[:-5], zstd["unpack"](data)
    return encoding, data


def _refuse_claim(claimed: int, packed: int, most: int, limit: int) -> None:
    if claimed > limit:
        raise ValueError(f"it unpacks to {claimed:,} bytes, more than value_limit={limit:,}")
    if claimed > packed * most:
        raise ValueError(f"{packed:,} packed bytes cannot be {claimed:,} bytes")


def _zstandard() -> dict[str, Any]:
    if not _zstd:
        try:
            import zstandard
        except ImportError as error:
            raise InvalidInput(
                "compression='zstd' needs the extra: pip install 'langgraph-checkpoint-ledger[zstd]'"
            ) from error
        _zstd["pack"] = lambda data: zstandard.ZstdCompressor(level=1).compress(data)
        _zstd["claim"] = lambda data: zstandard.get_frame_parameters(data).content_size
        _zstd["unpack"] = lambda data: zstandard.ZstdDecompressor().decompress(data)
    return _zstd
