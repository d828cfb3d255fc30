"""An agent that is killed again and again while it works through a pile of tickets: `python -m benchmarks.restart`."""
