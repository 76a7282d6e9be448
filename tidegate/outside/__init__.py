"""The engine and the world: sources that bring rows in, subscribers and deliveries that take batches out."""
