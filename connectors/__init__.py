"""Sources and sinks, one file each: users import the one they want; docs/how-to/connectors.md lists them."""
