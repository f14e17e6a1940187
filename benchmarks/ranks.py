"""The ranks of a benchmark that times process groups itself, without a sweep: one process each, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_ranks(script: str, job: dict[str, Any], count: int, limit_s: float) -> list[Any]:
    """Runs ``script --rank R --job FILE`` for each rank and gives the JSON lines that rank 0 printed.

    The job gets a ``store``, the path of a FileStore. Ends all ranks, and raises SystemExit or TimeoutExpired, when one
    fails or ``limit_s`` is over.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job | {"store": str(Path(folder) / "store")}))
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        ranks = [
            subprocess.Popen(
                [sys.executable, script, "--rank", str(rank), "--job", str(path)],
                env=environment, stdout=subprocess.PIPE if rank == 0 else None, text=True,
            )
            for rank in range(count)
        ]  # fmt: skip
        try:
            output, _ = ranks[0].communicate(timeout=limit_s)
            for process in ranks:
                if process.wait(30) != 0:
                    raise SystemExit(f"a rank ended with exit code {process.returncode}")
        finally:
            for process in ranks:
                process.kill()
    return [json.loads(line) for line in output.splitlines()]
