"""Streams and views declared in SQL: from text to the tables, streams, procedures and views of an app. Pure planning."""
