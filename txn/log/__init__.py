"""The command log: what was accepted, in order, on disk. Record, writer and reader are three small units."""
