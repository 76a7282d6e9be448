"""Tables: schemas, versions over a DuckDB base, and SQL over both. Knows nothing of streams or transactions."""
