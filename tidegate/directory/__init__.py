"""An engine's directory: its layout, and the log that makes work durable."""
