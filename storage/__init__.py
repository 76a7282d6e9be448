"""Tables: schemas, versions over a DuckDB base, and SQL over both. Independent of streams and transactions."""
