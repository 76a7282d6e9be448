"""SQL databases: a query as a source, a table as a sink."""
