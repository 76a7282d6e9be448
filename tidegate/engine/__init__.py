"""The engine: work comes in, runs in order and is merged; outcomes and queries."""
