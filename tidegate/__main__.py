"""The command, also as ``python -m tidegate``: interrupted at any moment, even while it is imported, it ends without a trace."""

import sys


def main() -> None:
    """Import the command line, and run it."""
    try:
        from tidegate.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
