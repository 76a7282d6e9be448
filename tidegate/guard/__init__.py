"""Access: addresses, scopes of tokens, delays for wrong ones, connections, and files for one user only."""
