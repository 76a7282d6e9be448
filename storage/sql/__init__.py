"""SQL over the tables of one execution: compiled to row access, or answered by DuckDB."""
