"""The command line. One file per command; ``app`` holds the table of commands and the way errors leave."""

from spola.cli.app import main

__all__ = ["main"]
