"""Sinks for output streams: SQL and files (exactly once), webhooks and callbacks (at least once)."""
