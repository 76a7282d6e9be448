"""Executors: who runs what the scheduler says may run."""
