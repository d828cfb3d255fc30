"""The demonstration behind `python -m langgraph_ledger demo`: nothing here is needed to use the saver.

`tickets` is the agent, `worker` the process that runs it, `journal` the outside record of what really happened,
`processes` starts and kills workers, `crash` and `rivals` are the two acts, `screen` prints, `show` puts it together.
"""
