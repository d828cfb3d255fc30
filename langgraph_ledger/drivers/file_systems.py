"""Which file system a path is on, as far as the system says so: SQLite's WAL needs memory that all processes share."""

from __future__ import annotations

import os
import re
import warnings

MOUNTS = "/proc/self/mountinfo"
NETWORKED = {
    "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "smb2", "smb3", "smbfs",
}  # fmt: skip
NETWORKED_FUSE = {
    "ceph-fuse", "davfs", "gcsfuse", "glusterfs", "goofys", "juicefs", "rclone", "s3fs", "smbnetfs", "sshfs",
}  # fmt: skip


def warn_if_networked(path: str) -> None:
    """A warning, if a database file is on a file system that other machines share."""
    kind = file_system_of(path)
    if kind is not None and (kind in NETWORKED or kind.removeprefix("fuse.") in NETWORKED_FUSE):
        warnings.warn(
            f"{path!r} is on a network file system ({kind}), where SQLite's locks and shared memory cannot be relied"
            " on: two machines may damage the ledger. Keep it on a local disk, or use Postgres",
            RuntimeWarning,
            stacklevel=2,
        )


def file_system_of(path: str) -> str | None:
    """The type of the file system that a file is on, or would be; None where the system does not say: Linux does."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = [_mount(line) for line in file]
    except OSError:
        return None
    folder = os.path.dirname(os.path.realpath(path))
    around = [(len(point), kind) for point, kind in mounts if f"{folder}/".startswith(f"{point.rstrip('/')}/")]
    longest = max((length for length, _ in around), default=0)
    return next(
        (kind for length, kind in reversed(around) if length == longest), None
    )  # the last one covers the others


def _mount(line: str) -> tuple[str, str]:
    """Where something is mounted, and of which type it is. Spaces and the like are octal there."""
    where, _, what = line.partition(" - ")
    point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), where.split(" ")[4])
    return point, what.split(" ")[0]
