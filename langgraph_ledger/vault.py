"""How what is stored is kept from being changed, moved or read: digests for everyone, a cipher for who wants one.

A plain vault puts a digest over the bytes and the name of their place. A cipher vault encrypts, with the name of the
place inside of the plain text (LangGraph's ciphers take no associated data), and its chunk ids are keyed: a plain
digest of a short text can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Protocol

from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol

from langgraph_ledger.codecs import VALUE_LIMIT
from langgraph_ledger.errors import KeyMissing
from langgraph_ledger.images import Images

SEAL_BYTES = 8
DIGEST_BYTES = 16
PART, INDEX = "part", "index"

_CIPHER = b"\1"
_PLAIN = b"\0"
_ENCRYPTED = re.compile(re.escape(_CIPHER) + rb"[ -~]{1,64}\0")

NO_KEY = "it is encrypted: give the saver the EncryptedSerializer it was written with"

OPEN_STAMP, KEYED_STAMP = b"\1", b"\2"
"""What the digest of a row begins with: whether anybody can compute it."""


class Vault(Protocol):
    """What `memory.py` needs to name, seal and open bytes."""

    serde: SerializerProtocol
    is_open: bool
    """Whether values may be shown in SQL, and digests may be guessed."""
    images: Images
    """What this process remembers under these ids."""
    limit: int
    """How many bytes a value may take when serialised."""

    def digest(self, kind: str, content: bytes, children: bytes) -> bytes: ...

    def seal(self, data: bytes, label: str) -> bytes: ...

    def unseal(self, sealed: bytes, label: str) -> bytes: ...

    def stamp(self, data: bytes) -> bytes: ...


def _named(kind: str, found: bytes) -> bytes:
    """A digest as an id: the first bit is set for bytes and clear for an index.

    So SQL can follow the references of a rope without looking at the chunks of bytes.
    """
    return (_AS_PART if kind == PART else _AS_INDEX)[found[0]] + found[1:DIGEST_BYTES]


_AS_PART = [bytes((first | 0x80,)) for first in range(256)]
_AS_INDEX = [bytes((first & 0x7F,)) for first in range(256)]


class PlainVault:
    """Digests only: a changed byte, or a row in the wrong place, is noticed; anyone with the database can read it."""

    is_open = True

    def __init__(self, serde: SerializerProtocol, images: Images | None = None, limit: int = VALUE_LIMIT) -> None:
        self.serde, self.images, self.limit = serde, images or Images(), limit

    def digest(self, kind: str, content: bytes, children: bytes) -> bytes:
        """The id of a chunk: 127 bits of SHA-256 over what it refers to and what it holds."""
        named = b"%b%d:%b" % (kind.encode(), len(children), children)
        return _named(kind, hashlib.sha256(named + content).digest())

    def seal(self, data: bytes, label: str) -> bytes:
        """The bytes behind a digest of them and of their place."""
        return _PLAIN + hashlib.sha256(label.encode() + b"\0" + data).digest()[:SEAL_BYTES] + data

    def unseal(self, sealed: bytes, label: str) -> bytes:
        """What `seal` was given; ValueError if bytes or place are not."""
        if sealed[:1] == _CIPHER:
            raise KeyMissing(NO_KEY)
        data = sealed[1 + SEAL_BYTES :]
        if hashlib.sha256(label.encode() + b"\0" + data).digest()[:SEAL_BYTES] != sealed[1 : 1 + SEAL_BYTES]:
            raise ValueError("its digest does not match")
        return data

    @staticmethod
    def stamp(data: bytes) -> bytes:
        """The digest of a row: SHA-256."""
        return OPEN_STAMP + hashlib.sha256(data).digest()


class CipherVault:
    """Everything encrypted, each piece bound to its place, ids keyed with the ledger's own secret."""

    is_open = False

    def __init__(
        self,
        serde: SerializerProtocol,
        cipher: CipherProtocol,
        secret: bytes,
        images: Images | None = None,
        limit: int = VALUE_LIMIT,
    ) -> None:
        self.serde, self._cipher, self._secret = serde, cipher, secret
        self.images, self.limit = images or Images(), limit

    def digest(self, kind: str, content: bytes, children: bytes) -> bytes:
        """The id of a chunk: 127 bits of HMAC-SHA-256."""
        keyed = hmac.new(self._secret, b"%b%d:" % (kind.encode(), len(children)), hashlib.sha256)
        keyed.update(children)
        keyed.update(content)
        return _named(kind, keyed.digest())

    def seal(self, data: bytes, label: str) -> bytes:
        """The bytes and the name of their place, encrypted."""
        return encrypt(self._cipher, label.encode() + b"\0" + data)

    def unseal(self, sealed: bytes, label: str) -> bytes:
        """What `seal` was given; ValueError if it was changed, moved, or never encrypted."""
        if sealed[:1] != _CIPHER:
            raise ValueError("it is not encrypted, and this saver reads only what is")
        place, _, data = decrypt(self._cipher, sealed).partition(b"\0")
        if place != label.encode():
            raise ValueError("it was encrypted for another place")
        return data

    def stamp(self, data: bytes) -> bytes:
        """The digest of a row: HMAC-SHA-256, which nobody can compute without the key."""
        return KEYED_STAMP + hmac.new(self._secret, b"row\0" + data, hashlib.sha256).digest()


open_stamp = PlainVault.stamp
"""The digest of a row, without a key."""


def encrypt(cipher: CipherProtocol, data: bytes) -> bytes:
    """Encrypted bytes with the cipher's name."""
    name, encrypted = cipher.encrypt(data)
    return _CIPHER + name.encode() + b"\0" + encrypted


def looks_encrypted(data: bytes) -> bool:
    """Whether bytes begin as those of `encrypt` do. For bytes that are not what they were: others may, too."""
    return _ENCRYPTED.match(data) is not None


def decrypt(cipher: CipherProtocol, data: bytes) -> bytes:
    """What `encrypt` was given; ValueError if the cipher refuses it."""
    name, _, encrypted = data[1:].partition(b"\0")
    try:
        return cipher.decrypt(name.decode(), encrypted)
    except Exception as error:
        raise ValueError(f"it cannot be decrypted ({error})") from error
