"""The SQL shell: what it queries, how it shows answers, and the prompt."""
