"""The engine and the outside world: sources that bring rows in, subscribers and deliveries that take batches out."""
