"""The program: runs the command line, and turns what went wrong into one message and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import typer
from typer.main import get_command

from netbench.cli import app
from netbench.errors import Exit, NetbenchError


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code. Nothing but our own mistakes shows a traceback."""
    try:
        code = get_command(app).main(arguments, prog_name="netbench", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except NetbenchError as error:
        print(f"netbench: {error}", file=sys.stderr)
        return int(error.exit_code)
    except typer.Exit as ending:
        return int(ending.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("netbench: stopped by SIGINT", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The reader of a pipe (head, say) has had enough; typer makes a SystemExit of that. Python would complain once
        # more when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.DONE)
    except Exception as error:
        if (show := getattr(error, "show", None)) and hasattr(error, "exit_code"):
            show()  # the command line's own complaints: unknown option, missing argument
            return int(Exit.USAGE)
        raise


if __name__ == "__main__":
    main()
