"""Evaluating windows: plans, where they run, and look-ahead."""
