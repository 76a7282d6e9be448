"""Sources and sinks, a file each: users import the one they want; docs/how-to/connectors.md lists them."""
