"""What the ledger does, each operation written once: generators of named statements, no database library."""
