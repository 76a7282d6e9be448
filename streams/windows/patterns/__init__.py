"""Event patterns: sequences of rows, found in streams as part of the transaction."""
