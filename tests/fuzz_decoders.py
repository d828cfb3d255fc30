"""Look for bytes that a decoder does not expect, as long as one likes (atheris, in the extra `fuzz`).

    python -m tests.fuzz_decoders                       each decoder for a minute
    python -m tests.fuzz_decoders --seconds 3600 shelf  one of them for an hour

A decoder gives a value or the ledger's own error. After anything else the exit code is 1, and the bytes are in a file
`crash-...`. The tests give decoders bytes of their own: `test_fuzz.py`.
"""

import argparse
import subprocess
import sys
import tempfile
from functools import partial

import atheris

with atheris.instrument_imports(include=["langgraph_ledger"]):
    from tests.decoders import DECODERS, attempt

ONE = "--one-decoder"
"""Before the name of the decoder for a process that libFuzzer ends."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.fuzz_decoders", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help=", ".join(DECODERS))
    parser.add_argument("--seconds", type=int, default=60, help="for each (60)")
    options = parser.parse_args()
    if unknown := set(options.decoders) - set(DECODERS):
        parser.error(f"there is no decoder {', '.join(sorted(unknown))}")
    failed = []
    for name in options.decoders or DECODERS:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as corpus:
            limits = [f"-max_total_time={options.seconds}", "-max_len=4096", "-rss_limit_mb=2048", "-timeout=20"]
            command = [sys.executable, "-m", "tests.fuzz_decoders", ONE, name, *limits, corpus]
            failed += [name] * bool(subprocess.run(command).returncode)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        atheris.Setup([sys.argv[0], *sys.argv[3:]], partial(attempt, sys.argv[2]))
        atheris.Fuzz()
    main()
