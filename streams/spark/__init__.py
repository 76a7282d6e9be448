"""Spark: sessions, and the evaluation of windows on it. Nothing here imports pyspark before it is needed."""
