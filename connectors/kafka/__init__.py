"""Kafka: a topic as a source and as a sink, and changelogs read from it."""
