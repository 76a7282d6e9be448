"""Random apps, random inputs, random interleavings, each compared with serial execution: ``tidegate sim``."""

from tidegate.testing.simulation.run import Failure, Summary, simulate, simulate_parallel, simulate_seed

__all__ = ["Failure", "Summary", "simulate", "simulate_parallel", "simulate_seed"]
