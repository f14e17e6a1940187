"""From a file of another tool to a run's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import netbench
from netbench.errors import RecordError, UsageError
from netbench.foreign import file_name, printable
from netbench.importers.iperf3 import Iperf3
from netbench.importers.nccl import NcclTests
from netbench.importers.osu import Osu
from netbench.importers.seed import Gloo471
from netbench.importers.tool import Given, Misread, Tool
from netbench.quotes import write_quotes
from netbench.record import Manifest, RunFolder, Source, create_run_folder
from netbench.registry import Registry

TOOLS: Registry[Tool] = Registry("tool", aliases={"seed": "gloo-471"})
TOOLS.add(NcclTests())
TOOLS.add(Iperf3())
TOOLS.add(Osu())
TOOLS.add(Gloo471())

#: More than any of these tools writes; it keeps a wrong path from filling the memory.
_MAX_BYTES = 64 * 2**20


def import_file(
    path: Path, tool: str | None, given: Given, out: Path, name: str | None, question: str, command: Sequence[str]
) -> RunFolder:
    """Makes a run of a file's numbers. ``tool`` is one of TOOLS, or None to find out by the file's looks.

    Raises RecordError, naming the line, when the file is not what it claims to be, and UsageError when the user has to
    say more about it. Nothing is written before all of it has been read.
    """
    for option, word in (("--name", name), ("--backend", given.backend)):
        if word is not None:
            try:
                file_name(word)
            except ValueError as error:
                raise UsageError(f"{option}: {error}") from None
    content = _content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecordError(f"{path}: line {line}: is not text") from None
    chosen = TOOLS[tool] if tool else _recognised(path, text)
    try:
        findings = chosen.read(text, given)
        cases = [quote.case for quote in findings.quotes]
        if twice := {case.id for case in cases if cases.count(case) > 1}:
            raise RecordError(f"{path}: has {sorted(twice)[0]} twice; put each measurement into a file of its own")
    except Misread as error:
        raise RecordError(f"{path}: is no output of {chosen.name} that netbench can import: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    now = datetime.now(UTC)
    folder = create_run_folder(out, name or chosen.name, findings.started_at or now, inside=())
    manifest = Manifest(
        run_id=folder.path.name,
        name=name or chosen.name,
        question=question,
        status="imported",
        netbench=netbench.__version__,
        command=list(command),
        started_at=findings.started_at or now,
        ended_at=findings.started_at or now,
        config={},
        cases=cases,
        source=Source(
            tool=chosen.name,
            version=findings.version,
            place=printable(path.name),
            time=findings.time,
            sha256=hashlib.sha256(content).hexdigest(),
            hosts=findings.hosts,
        ),
    )
    write_quotes(folder, findings.quotes)
    folder.write_manifest(manifest)
    return folder


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path}: is larger than {_MAX_BYTES // 2**20} MiB, and so no output of these tools")
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if not content.strip():
        raise RecordError(f"{path}: line 1: is empty")
    return content


def _recognised(path: Path, text: str) -> Tool:
    for tool in TOOLS.values():
        if tool.recognises(text):
            return tool
    raise RecordError(f"{path}: line 1: looks like none of {', '.join(TOOLS)}; say by --tool which it is")
