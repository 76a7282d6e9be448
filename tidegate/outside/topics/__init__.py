"""Topics: the batches of streams as they committed, each at its offset, for readers who come when they like."""
