"""What is done with a directory while no engine runs on it: backups, verification, reading its log and tables."""
