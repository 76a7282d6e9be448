"""Who may come in: addresses, tokens' scopes, patience with wrong ones, connections, and files for one user only."""
