"""What can go wrong, in the ledger's own words: every error the package raises and whose turn it is to act.

Nothing here knows a database; the drivers translate into these classes. `StateConflict` lives in
`conflicts.py` beside the helpers that answer it.
"""

from __future__ import annotations


class LedgerError(Exception):
    """Base of every error this package raises on its own account."""


class InvalidInput(LedgerError, ValueError):
    """The caller passed something that cannot be stored or looked up. Nothing was written."""


class UnknownCheckpoint(LedgerError, LookupError):
    """A checkpoint was named that the ledger does not hold. Nothing was written."""


class CheckpointExists(LedgerError, ValueError):
    """A checkpoint id came a second time with different content. The first one stays as it is."""


class ValueNotStorable(LedgerError, TypeError):
    """The serializer refused a value. The message names thread, namespace, channel and type."""


class ValueNotRestorable(LedgerError, ValueError):
    """A stored value could not be read back: damaged bytes, or a type the serializer does not allow."""


class TypeNotAllowed(ValueNotRestorable):
    """A stored value is whole, but its type is none that this saver's serializer may make; says how to allow it."""


class KeyMissing(ValueNotRestorable):
    """A stored value is encrypted, and this saver's serializer has no key."""


class UnknownCall(LedgerError, RuntimeError):
    """A call that must not be made twice may have happened already: a person or a probe has to find out."""


class NotTransferred(LedgerError, ValueError):
    """A transfer between savers that gave another thing than was there. The source is as it was."""


class SaverClosed(LedgerError, RuntimeError):
    """The saver was used after `close()` or `aclose()`."""


class WrongFlavour(LedgerError, RuntimeError):
    """A synchronous call on a saver that was built on the caller's own asynchronous connection."""


class DatabaseError(LedgerError):
    """The database refused a statement; the original error is the cause."""


class DatabaseUnavailable(DatabaseError, ConnectionError):
    """The database cannot be reached, or gave up waiting for a lock. Trying again later may succeed."""


class ThreadLocked(DatabaseUnavailable):
    """Synchronous code on a running event loop needs a thread that a save on this very loop has locked."""


class NotALedger(DatabaseError):
    """The file or schema is there but is not one this package can use."""


class SchemaMissing(NotALedger):
    """The ledger's tables do not exist, and this saver may not create them."""


class SchemaTooNew(NotALedger):
    """The tables were made by a newer version of the package. Upgrade the package first."""


class ReadOnlyLedger(DatabaseError, PermissionError):
    """A write on a saver opened with `read_only=True`, or on a database that accepts no writes."""


class Duplicate(DatabaseError):
    """A row with this key exists. Operations turn it into a no-op or into `CheckpointExists`."""


class ReuseRefused(DatabaseError):
    """A value taken over from a parent checkpoint, which is gone by now. The value is stored anew."""
