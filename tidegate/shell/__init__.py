"""The SQL shell: where it asks, how it shows answers, and how people type."""
