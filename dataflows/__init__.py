"""Dataflows: pure definitions of procedures, streams and how they connect. Declaring touches nothing."""
