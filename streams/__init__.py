"""Streams: batches and windows. Knows tables' schemas, nothing of transactions."""
