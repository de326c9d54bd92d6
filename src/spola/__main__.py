"""``python -m spola``: the same as the ``spola`` command."""

from spola.cli import main

if __name__ == "__main__":
    main()
