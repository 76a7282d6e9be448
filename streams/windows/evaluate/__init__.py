"""Evaluating windows: plans, where they run, and working ahead."""
