"""Drivers own connections, transactions, retries and the translation of errors; they know no operation."""
