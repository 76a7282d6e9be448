"""An engine's directory: what lies where in it, and the log that makes work durable."""
