"""The engine: work comes in, is run in order, and is merged; what became of it, and questions about it."""
