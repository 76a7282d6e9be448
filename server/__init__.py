"""The server: one process owns the data, and everyone else talks to it over HTTP. Needs ``tidegate[server]``."""
