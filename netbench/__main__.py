"""The program: runs the command line, and turns what went wrong into one message and an exit code."""

from __future__ import annotations

import io
import sys

import typer
from typer.main import get_command

from netbench.cli import app
from netbench.errors import Exit, NetbenchError, StorageError
from netbench.foreign import printable
from netbench.outlets import let_go_of_stdout, open_outlets


def main() -> None:
    open_outlets()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except (OSError, StorageError):  # said already
        let_go_of_stdout()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code. Nothing but our own mistakes shows a traceback."""
    try:
        code = get_command(app).main(arguments, prog_name="netbench", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except NetbenchError as error:
        # It may name what a stranger's file is called, or holds.
        print(f"netbench: {printable(str(error), lines=True)}", file=sys.stderr)
        return int(error.exit_code)
    except typer.Exit as ending:
        return int(ending.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("netbench: stopped by SIGINT", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # typer and rich make a SystemExit of a broken pipe.
        let_go_of_stdout()
        return int(Exit.DONE)
    except Exception as error:
        if (show := getattr(error, "show", None)) and hasattr(error, "exit_code"):
            # The command line's own complaints: unknown option, missing argument.
            text = io.StringIO()
            show(file=text)
            print(printable(text.getvalue(), lines=True), file=sys.stderr, end="")
            return int(Exit.USAGE)
        raise


if __name__ == "__main__":
    main()
