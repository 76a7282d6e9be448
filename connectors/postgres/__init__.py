"""PostgreSQL: its changes as a source."""
