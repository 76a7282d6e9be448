"""PostgreSQL's SQL, as clients of the PostgreSQL protocol write it, translated for DuckDB or refused."""
