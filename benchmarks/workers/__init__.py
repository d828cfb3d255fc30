"""Many processes on one Postgres: how much they get done, how they get in each other's way, and large tables."""
