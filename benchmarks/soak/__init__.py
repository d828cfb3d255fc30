"""A soak: an hour of mixed load in one process, whose memory, file descriptors and threads must stay where they are.

Lanes (`lane.py`) do, at random, what a program can do with a saver (`activities.py`, `graphs.py`). Between two spells
of load they rest, a worker is forked, and it is measured what the process holds (`samples.py`). In the end the last
third of the samples must be like the third before it (`verdict.py`).
"""
