"""Windows and joins as they are declared: kinds, functions, aggregates, patterns."""
