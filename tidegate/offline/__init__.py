"""What is done with a directory while no engine runs on it: backups, verification, looking at its log and tables."""
