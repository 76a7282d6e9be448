"""The files of a new project, with ``$name`` in place of its name."""
