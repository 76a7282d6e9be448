"""Sinks for output streams: SQL databases and files (exactly once), webhooks and callbacks (at least once)."""
