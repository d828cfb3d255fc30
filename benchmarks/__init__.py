"""How long LedgerSaver takes, and how much it stores, beside LangGraph's own savers: `python -m benchmarks`."""
