"""What connectors have in common."""
