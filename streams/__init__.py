"""Streams: batches and windows. Depends on tables' schemas, not on transactions."""
