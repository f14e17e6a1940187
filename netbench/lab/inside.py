"""``python -m netbench.lab.inside HOST ARGV...`` becomes ARGV in a lab's host; HOST is a HostAddress as JSON."""

from __future__ import annotations

import json
import sys

from netbench.errors import NetbenchError
from netbench.lab.host import HostAddress, run_inside

if __name__ == "__main__":
    try:
        run_inside(HostAddress(**json.loads(sys.argv[1])), sys.argv[2:])
    except NetbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
