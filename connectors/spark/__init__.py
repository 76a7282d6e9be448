"""Spark: Structured Streaming into border streams, and the data source ``tidegate``."""
