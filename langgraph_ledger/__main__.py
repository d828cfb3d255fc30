"""`python -m langgraph_ledger`: the command line."""

from langgraph_ledger.cli import main

if __name__ == "__main__":
    main()
