"""Commands of the command line, a file for each group. ``tidegate.cli.main`` registers them."""
