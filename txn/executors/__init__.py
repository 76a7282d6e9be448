"""Executors: they run what the scheduler says may run."""
