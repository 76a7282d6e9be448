"""Rows by key on disk, beside DuckDB: what a table that is not held in memory is read from, in microseconds."""
