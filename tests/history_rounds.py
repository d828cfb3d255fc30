"""A process that plays rounds of the history check: it has no other threads, as forking wants it."""

import json
import sys

from benchmarks.history.play import Round, play


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(vars(play(Round(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
