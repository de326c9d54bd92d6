"""The ``spola`` command: finds subcommands lazily, turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Commands live in their own modules, which
are imported only when they are called, so that ``spola --help`` stays quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from spola import __version__
from spola.cli.output import printable
from spola.core import flags
from spola.core.errors import ConfigError, SpolaError

__all__ = ["COMMANDS", "main"]

# name -> (module, one line for the overview)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("spola.cli.run", "Answer one prompt, streamed; or chat on a terminal."),
    "serve": ("spola.cli.serve", "Serve models over HTTP, to clients of OpenAI and Anthropic."),
    "batch": ("spola.cli.batch", "Answer a file of requests; resumes after a crash."),
    "tokenize": ("spola.cli.tokenize", "Show the token ids of a text."),
    "inspect": ("spola.cli.inspect", "Show what is inside a model file."),
    "quantize": ("spola.cli.quantize", "Write a model as a GGUF file of another weight type."),
    "verify": ("spola.cli.verify", "Check that a model file is what it should be."),
    "eval": ("spola.cli.eval", "Measure perplexity, and agreement with another model."),
    "plan": ("spola.cli.plan", "Say what a model needs and how fast it can be, without loading it."),
    "profile": ("spola.cli.profile", "Show where the time of a model goes, by operation."),
    "bench": ("spola.cli.bench", "Measure and compare speeds: of a model, a server, the kernels."),
    "models": ("spola.cli.models", "List models on this disk and ones to fetch."),
    "pull": ("spola.cli.pull", "Fetch a model."),
    "top": ("spola.cli.top", "Watch a server's engine in the terminal."),
    "glossary": ("spola.cli.glossary", "Explain a word of LLM inference, in English or Italian."),
    "quiz": ("spola.cli.quiz", "Questions about LLM inference, graded."),
    "doctor": ("spola.cli.doctor", "Check this machine and say what to fix."),
    "flags": ("spola.cli.flags", "List the SPOLA_* environment variables."),
}


class _Commands(click.Group):
    """A group whose commands are imported when they are called, and not to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        row = COMMANDS.get(name)
        if row is None:
            return None
        command: click.Command = import_module(row[0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and, in stand-alone mode, exit the process with the code of what happened."""

        def run() -> Any:
            return click.Group.main(
                self, args, prog_name or "spola", complete_var, standalone_mode=False, **extra
            )

        if not standalone_mode:
            return run()
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            reconfigure: Any = getattr(stream, "reconfigure", None)
            if reconfigure is not None:  # a terminal that cannot show a character must not end the program
                reconfigure(errors="replace")
        code = _guarded(run)
        try:
            sys.stdout.flush()
        except OSError:
            _close_stdout()
            code = code or 1
        sys.exit(code)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Example: spola run "What is gravity?"',
)
@click.version_option(__version__, prog_name="spola")
def main() -> None:
    """spola runs language models on this machine's processors."""


def _guarded(run: Any) -> int:
    try:
        for name in flags.unknown():
            print(f"spola: warning: {name} is no known variable; see `spola flags`", file=sys.stderr)
        result = run()
    except click.UsageError as error:
        error.show()
        return 2
    except click.ClickException as error:
        error.show()
        return 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        _close_stdout()
        return 1
    except SpolaError as error:
        return _fail(str(error))
    except OSError as error:
        # Nothing of spola's own: a full disk under stdout, or a file that went away.
        return _fail(
            f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        )
    except Exception as error:
        return _fail(f"internal error: {type(error).__name__}: {error}; SPOLA_DEBUG=1 shows where")
    return result if isinstance(result, int) else 0


def _fail(line: str) -> int:
    try:
        debug = bool(flags.read("SPOLA_DEBUG"))
    except ConfigError:
        debug = False
    if debug:
        traceback.print_exc()
    print(f"spola: error: {printable(' '.join(line.split()))}", file=sys.stderr)
    return 1


def _open_closed_streams() -> None:
    """Give a stream that was closed by the caller (``>&-``) an end that swallows, or holds, nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (until the end)


def _close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not fail on flushing it at exit."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
