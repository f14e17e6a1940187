"""The record of a run on disk: its folder, its manifest ``run.json``, and the samples of each finished case.

Everything is written to a temporary file, flushed to the disk and renamed, so whatever has its final name is whole.
A finished case is exactly one file ``samples/<case id>.parquet``; docs/results-format.md describes all of it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from netbench.errors import RecordError, StorageError
from netbench.facts import checked_hosts, first_complaint, known_case, seal
from netbench.foreign import file_name, parse_json, read_bytes
from netbench.lab.spec import LabSpec
from netbench.model import Case, Skip
from netbench.units import about_bytes

if TYPE_CHECKING:
    import numpy
    import pyarrow

#: Raised whenever old readers could misunderstand a new record.
SCHEMA_VERSION = 1

#: The integer columns that a rank measures for every iteration, in the order of its sample array.
MEASURED = (
    "iteration",
    "warmup",
    "launch",
    "round",
    "start_ns",
    "duration_ns",
    "cpu_user_ns",
    "cpu_system_ns",
    "minor_faults",
    "voluntary_switches",
    "involuntary_switches",
)

#: What is read at once for a timeline: the monotonic clock, and the interface's counters of bytes, headers included.
TIMELINE = ("at_ns", "sent_bytes", "received_bytes")


class Failure(BaseModel):
    """A case that was started and did not finish."""

    case_id: str
    launch: int
    reason: str


class Launch(BaseModel):
    """One start of the workers."""

    number: int
    command: list[str]
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""


class LabFacts(BaseModel):
    """The emulated network that a run was measured on: ``spec`` in full, and what follows from it."""

    spec: str
    hosts: int = Field(ge=1, le=2**20)
    rate_bit_s: int = Field(ge=1, le=10**15)
    flow_bit_s: int | None = Field(ge=1, le=10**15)
    delay_us: int = Field(ge=0, le=10**9)
    loss_ppm: int = Field(ge=0, le=10**6)
    #: The most payload that one host can send in one direction, with as many connections as it takes.
    payload_ceiling_bit_s: float = Field(gt=0, le=1e15)

    @classmethod
    def of(cls, spec: LabSpec) -> Self:
        return cls(spec=str(spec), payload_ceiling_bit_s=spec.payload_ceiling(), **asdict(spec))


class Source(BaseModel):
    """Whose the numbers of a run are that netbench did not measure; they lie in ``quoted.csv`` (see quotes)."""

    tool: str
    version: str = ""
    #: Where they were found: a file's name, or where they were published.
    place: str
    #: What their times are, in words that follow "time:".
    time: str
    #: Of the file, so that it can be told whether it is still the same.
    sha256: str = ""
    hosts: list[str] = []


class Manifest(BaseModel):
    """``run.json``: all that is known of a run but its samples. Times are UTC."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    run_id: Annotated[str, AfterValidator(file_name)]
    name: Annotated[str, AfterValidator(file_name)]
    question: str = ""
    status: str = "running"  # running, finished, failed, interrupted; imported, quoted: not measured by netbench
    netbench: str
    command: list[str]
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    config: dict[str, Any]
    cases: list[Annotated[Case, AfterValidator(known_case)]]
    skips: list[Skip] = []
    failures: list[Failure] = []
    launches: list[Launch] = []
    environment: Annotated[list[dict[str, Any]], AfterValidator(checked_hosts)] = []
    lab: LabFacts | None = None
    source: Source | None = None


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def manifest(self) -> Path:
        return self.path / "run.json"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    def sample_file(self, case_id: str) -> Path:
        return self.samples / f"{case_id}.parquet"

    def partial_file(self, case_id: str) -> Path:
        """The samples of a case that has rounds to come."""
        return self.path / "partial" / f"{case_id}.parquet"

    def timeline_file(self, case_id: str) -> Path:
        return self.path / "timeline" / f"{case_id}.parquet"

    @property
    def quotes(self) -> Path:
        return self.path / "quoted.csv"

    def log(self, launch: int, node_rank: int = 0) -> Path:
        """What torchrun and the ranks of one host wrote; the names of other hosts' logs say which."""
        return self.logs / (f"launch-{launch}.node-{node_rank}.log" if node_rank else f"launch-{launch}.log")

    @property
    def nodes_log(self) -> Path:
        """What the programs wrote that started netbench on other hosts."""
        return self.logs / "nodes.log"

    def job(self, launch: int) -> Path:
        return self.logs / f"launch-{launch}.job.json"

    def events(self, launch: int) -> Path:
        return self.logs / f"launch-{launch}.events.jsonl"

    def rank_error(self, launch: int, rank: int) -> Path:
        return self.logs / f"launch-{launch}.rank-{rank}.error.json"

    def rank_errors(self, launch: int) -> Iterator[Path]:
        """The reports of the ranks of a launch that ended early."""
        return self.logs.glob(f"launch-{launch}.rank-*.error.json")

    def finished(self) -> set[str]:
        """Ids of the cases whose samples are on disk."""
        return {path.stem for path in self.samples.glob("*.parquet")}

    def measured(self) -> dict[str, Path]:
        """The samples of every case that there are any of, by id: of the unfinished ones what is on disk so far."""
        partial = self.partial_file("").parent
        return {path.stem: path for folder in (partial, self.samples) for path in folder.glob("*.parquet")}

    def read_manifest(self) -> Manifest:
        """Raises RecordError, naming the file, when it is missing, damaged or of a newer version."""
        try:
            document = parse_json(read_bytes(self.manifest))
        except FileNotFoundError:
            raise RecordError(f"{self.path}: is not a run: it has no run.json") from None
        except OSError as error:
            raise RecordError(f"{self.manifest}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise RecordError(f"{self.manifest}: is damaged: {error}") from None
        version = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise RecordError(
                f"{self.manifest}: is of schema version {version}; "
                f"this netbench reads up to {SCHEMA_VERSION}: upgrade it"
            )
        try:
            return Manifest.model_validate(document)
        except ValidationError as error:
            raise RecordError(f"{self.manifest}: is damaged: {first_complaint(error)}") from None

    def write_manifest(self, manifest: Manifest) -> None:
        write_atomically(self.manifest, manifest.model_dump_json(indent=1).encode() + b"\n")

    def clear(self) -> None:
        """Removes what writers left half written when they were killed; for the holder of the lock, without workers."""
        for path in self.path.glob("**/.*.tmp"):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a sweep writes here, by the kernel, so it is gone with the process however that ends."""
        try:
            file = (self.path / "run.lock").open("w")
        except OSError as error:
            raise cannot_be_written(self.path / "run.lock", error) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RecordError(f"{self.path}: another sweep is writing this run; wait for it or stop it") from None
            yield

    def is_locked(self) -> bool:
        """Whether a sweep is writing here now."""
        if not (self.path / "run.lock").is_file():
            return False
        try:
            with (self.path / "run.lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False


def create_run_folder(out: Path, name: str, now: datetime, inside: Sequence[str] = ("samples", "logs")) -> RunFolder:
    """A new folder ``<out>/<UTC time>-<name>-<4 hex digits>`` with folders ``inside`` it; two runs never share one.

    Raises StorageError.
    """
    folder = RunFolder(out / f"{now:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(2)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder.path.mkdir()
        for inner in inside:
            (folder.path / inner).mkdir()
    except OSError as error:
        raise StorageError(f"{folder.path}: cannot be made: {error.strerror}; choose another place by --out") from None
    return folder


def cannot_be_written(path: Path, error: OSError) -> StorageError:
    """What to raise where ``path`` could not be written; where the disk is full, with how much of it is free."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            disk = shutil.disk_usage(path.parent)
            reason += f" ({about_bytes(disk.free)} of {about_bytes(disk.total)} are free); make room"
    return StorageError(f"{path}: cannot be written: {reason}")


def write_atomically(path: Path, content: bytes) -> None:
    """Writes ``content`` so that ``path`` is either as before or whole and on the disk. Raises StorageError."""
    # A new file, whatever is there: a link that a stranger put into a record must not be followed.
    temporary = path.with_name(f".{secrets.token_hex(4)}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise cannot_be_written(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def samples_table(
    run_id: str, case: Case, samples: Sequence[tuple[int, numpy.ndarray]], facts: dict[str, Any]
) -> pyarrow.Table:
    """One row per rank per iteration.

    ``samples`` holds, for each participating rank, its int64 array of shape (iterations, len(MEASURED)).
    ``facts`` is what is known of the case as a whole (status, per-rank counters); it goes into the file's metadata.
    """
    import numpy as np
    import pyarrow as pa

    rows = np.concatenate([array for _, array in samples])
    ranks = np.repeat([rank for rank, _ in samples], [len(array) for _, array in samples])
    columns: dict[str, pa.Array] = {}
    for column, value in {"case_id": case.id, **asdict(case)}.items():
        if isinstance(value, str):
            one = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int8)), pa.array([value]))
            columns[column] = one
        else:
            columns[column] = pa.array(np.full(len(rows), value, np.int64))
    columns["rank"] = pa.array(ranks.astype(np.int64))
    for index, name in enumerate(MEASURED):
        if name == "warmup":
            phases = pa.array(["timed", "warmup"])
            columns["phase"] = pa.DictionaryArray.from_arrays(pa.array(rows[:, index].astype(np.int8)), phases)
        else:
            columns[name] = pa.array(rows[:, index])
    metadata = _metadata(run_id, case) | {"netbench.facts": json.dumps(facts, allow_nan=False)}
    sealed = seal(metadata["netbench.case"].encode(), metadata["netbench.facts"].encode(), columns)
    return pa.table(columns, metadata=metadata | {"netbench.seal": sealed})


def write_samples(folder: RunFolder, case: Case, table: pyarrow.Table, finished: bool = True) -> None:
    """Puts a case on disk, whole or not at all: among the finished ones, or among those with rounds to come.

    Raises StorageError.
    """
    partial = folder.partial_file(case.id)
    if finished:
        _write_table(folder.sample_file(case.id), table)
        try:
            partial.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_be_written(partial, error) from None
    else:
        make_own_folder(partial.parent)
        _write_table(partial, table)


def timeline_table(run_id: str, case: Case, readings: Sequence[tuple[int, numpy.ndarray]]) -> pyarrow.Table:
    """One row per rank per reading; ``readings`` has each rank's int64 array of shape (readings, len(TIMELINE))."""
    import numpy as np
    import pyarrow as pa

    ranks = np.repeat([rank for rank, _ in readings], [len(array) for _, array in readings])
    rows = np.concatenate([array for _, array in readings])
    columns = {"rank": pa.array(ranks.astype(np.int64))}
    columns |= {name: pa.array(rows[:, index]) for index, name in enumerate(TIMELINE)}
    return pa.table(columns, metadata=_metadata(run_id, case))


def write_timeline(folder: RunFolder, case: Case, table: pyarrow.Table) -> None:
    """Puts a visit's readings beside its samples, behind those of earlier visits. Raises StorageError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder.timeline_file(case.id)
    make_own_folder(path.parent)
    if path.is_file():
        earlier = pq.read_table(path)
        table = pa.concat_tables([earlier, table]).sort_by([("rank", "ascending"), ("at_ns", "ascending")])
        table = table.replace_schema_metadata(earlier.schema.metadata)
    _write_table(path, table)


def make_own_folder(path: Path) -> None:
    """Makes a folder of a run, whose own folder is there. Raises StorageError, also where it is a link elsewhere."""
    if path.is_symlink():
        raise StorageError(f"{path}: is a link to another place, where nothing is written; remove it")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: cannot be made: {error.strerror}") from None


def _metadata(run_id: str, case: Case) -> dict[str, str]:
    return {
        "netbench.schema_version": str(SCHEMA_VERSION),
        "netbench.run_id": run_id,
        "netbench.case": json.dumps(asdict(case), allow_nan=False),
    }


def _write_table(path: Path, table: pyarrow.Table) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    # With its sums, a page that the disk has damaged is told from one that is whole.
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    write_atomically(path, sink.getvalue().to_pybytes())
