"""Transactions: positions, low-water-mark locks, the pure scheduler, and the executors around it."""
