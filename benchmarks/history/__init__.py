"""A history check: processes that are killed write to a few threads, and what they were told is held against the end.

In the manner of Jepsen and Elle: workers put every call on record, before it is made and when it has returned
(`records.py`, `worker.py`); a parent kills them and cuts their connections (`play.py`); the records and what is in the
database in the end (`remains.py`) must agree (`judge.py`).
"""
