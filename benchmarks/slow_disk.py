"""A disk whose flush takes longer: this program again, with every fsync and fdatasync of it and its servers delayed.

A flush takes well under a tenth of a millisecond on many virtual machines, whose host answers from memory, and one to
several milliseconds on the disks that databases in production are kept on. What counts there is how many flushes a
saver needs.
"""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "LEDGER_BENCHMARK_FLUSH_MS"

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_longer(void) { usleep((useconds_t) (1000 * atof(getenv("%(variable)s")))); }
int fsync(int fd) { int (*real)(int) = dlsym(RTLD_NEXT, "fsync"); wait_longer(); return real(fd); }
int fdatasync(int fd) { int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync"); wait_longer(); return real(fd); }
"""


def flush_milliseconds() -> float:
    """What this program adds to each flush."""
    return float(os.environ.get(VARIABLE, 0))


def begin_again(milliseconds: float, folder: Path) -> None:
    """Replaces this process by one whose flushes, and its children's, take so much longer. Needs a C compiler."""
    if not ctypes.util.find_library("dl"):
        raise SystemExit("--flush-ms needs LD_PRELOAD, which this system does not have")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "slow_disk.c", (folder / "slow_disk.so").resolve()
    source.write_text(_SOURCE % {"variable": VARIABLE}, "utf-8")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    except OSError as error:
        raise SystemExit(f"--flush-ms needs a C compiler, cc: {error}") from error
    there = {**os.environ, "LD_PRELOAD": str(library), VARIABLE: str(milliseconds)}
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], there)
