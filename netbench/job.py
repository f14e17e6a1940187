"""What the parent asks of the workers: one JSON file a launch, so that any launch can be repeated by hand."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from netbench.errors import RecordError
from netbench.lab import HostAddress
from netbench.model import Case
from netbench.record import SCHEMA_VERSION

if TYPE_CHECKING:
    from netbench.stopping import StopRule


class Place(NamedTuple):
    """Where a rank runs: its host's name, and the interface and address that its groups are bound to."""

    host: str
    interface: str
    address: str


class Job(BaseModel):
    """The cases of one launch in the order in which they are run; the launch has the ranks of the largest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA_VERSION
    run_id: str
    launch: int
    run_folder: Path
    cases: list[Case]
    #: Which of the sweep's repeated launches this belongs to, from 0; a launch that died has a successor in the same.
    repetition: int = 0
    repetitions: int = 1
    rounds: int = 1
    iterations: int | None
    budget_s: float = 1.0
    precision: float = 0.05
    warmup: int
    seed: int = 0
    pause_s: float
    timeout_s: float
    #: Where the groups are bound on the host that this copy of the job is for.
    interface: str = "lo"
    address: str = "127.0.0.1"
    #: The host's name; as it calls itself unless given.
    host: str | None = None
    #: How many hosts there are, which of them this copy is for, and how many ranks each has.
    nodes: int = 1
    node_rank: int = 0
    ranks_per_node: int = 1
    malloc: str = "default"
    #: The lab's specification, where the ranks run in one.
    lab: str | None = None
    #: In a lab, rank r runs in the r-th host; empty where the ranks run on this host as it is.
    lab_hosts: list[HostAddress] = []

    @property
    def world_size(self) -> int:
        return max(case.world_size for case in self.cases)

    @property
    def stop_rule(self) -> StopRule:
        # Brings numpy, which the parent does without.
        from netbench.stopping import StopRule

        return StopRule(self.iterations, self.rounds, self.budget_s, self.precision)

    def in_round(self, round: int) -> list[Case]:
        """The cases in an order of their own for each round, so that drift of the machine does not follow an axis."""
        order = random.Random(f"{self.seed}/{self.repetition}/{round}")
        return order.sample(self.cases, len(self.cases))

    def rank(self, local_rank: int) -> int:
        """The rank of a process by its place on its host.

        Ranks go round the hosts, so that neighbours are on different ones and rank 0 is on node 0; torchrun would fill
        one host after the other, and two ranks would talk inside of one.
        """
        return local_rank * self.nodes + self.node_rank

    def move(self, rank: int) -> Place:
        """Brings this process to where its rank belongs, before it has opened a socket, and says where that is."""
        if not self.lab_hosts:
            return Place(self.host or socket.gethostname(), self.interface, self.address)
        host = self.lab_hosts[rank]
        host.enter()
        return Place(host.name, host.interface, host.address)


def read_job(path: Path) -> Job:
    """Raises RecordError, naming the file, when it is not a job."""
    try:
        return Job.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise RecordError(f"{path}: is not a job of this netbench: {error}") from None
