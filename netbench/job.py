"""What the parent asks of the workers: one JSON file a launch, so that any launch can be repeated by hand."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from netbench.errors import RecordError
from netbench.lab import HostAddress
from netbench.model import Case
from netbench.record import SCHEMA_VERSION


class Place(NamedTuple):
    """Where a rank runs: its host's name, and the interface that its groups are bound to."""

    host: str
    interface: str


class Job(BaseModel):
    """The cases of one launch in the order in which they are run; the launch has the ranks of the largest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA_VERSION
    run_id: str
    launch: int
    run_folder: Path
    cases: list[Case]
    iterations: int
    warmup: int
    pause_s: float
    timeout_s: float
    interface: str
    malloc: str = "default"
    #: The lab's specification, where the ranks run in one.
    lab: str | None = None
    #: In a lab, rank r runs in the r-th host; empty where the ranks run on this host as it is.
    lab_hosts: list[HostAddress] = []

    @property
    def world_size(self) -> int:
        return max(case.world_size for case in self.cases)

    def move(self, rank: int) -> Place:
        """Brings this process to where its rank belongs, before it has opened a socket, and says where that is."""
        if not self.lab_hosts:
            return Place(socket.gethostname(), self.interface)
        host = self.lab_hosts[rank]
        host.enter()
        return Place(host.name, host.interface)


def read_job(path: Path) -> Job:
    """Raises RecordError, naming the file, when it is not a job."""
    try:
        return Job.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise RecordError(f"{path}: is not a job of this netbench: {error}") from None
