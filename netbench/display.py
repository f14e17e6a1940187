"""What a person sees while a sweep runs, on stderr: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from netbench.model import Case
from netbench.modes import MODES
from netbench.record import Manifest
from netbench.units import about_rate, about_seconds


@dataclass(frozen=True)
class Row:
    """A case that has ended: its time in seconds and algbw in Gbit/s, or how it ended instead."""

    case: Case
    time_s: float | None
    note: str = ""

    @property
    def algbw(self) -> str:
        if self.time_s is None or self.note:
            return ""
        rate = MODES[self.case.mode].messages * self.case.message_bytes / self.time_s
        return about_rate(rate * 8)

    @property
    def time(self) -> str:
        return about_seconds(self.time_s) if self.time_s is not None else ""


class Display:
    """Keeps count, and says nothing: the base of the two that do."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self._weights: dict[str, float] = {}
        self._visits = 1
        self._weight_done = 0.0
        self._first: float | None = None

    def begin(self, manifest: Manifest, remaining: Sequence[Case], visits: int = 1) -> None:
        """``visits`` is how often each case is visited before it is finished."""
        self._visits = visits
        self.total = len(manifest.cases)
        self.done = self.total - len(remaining)
        self._weights = {case.id: _weight(case) for case in remaining}

    def waiting(self, text: str) -> None:
        """Called again and again while other hosts are waited for."""

    def launching(self, ranks: int, hosts: Sequence[str]) -> None: ...

    def hosts(self, hosts: Sequence[Mapping[str, Any]]) -> None:
        """Who is there, as the record has it: a host an entry."""

    def started(self, case: Case) -> None:
        self._first = self._first or time.monotonic()

    def moving(self, case: Case, bit_s: float) -> None:
        """An operation takes long, and its bytes move at this rate."""

    def broken(self, launch: int, reason: str) -> None:
        """A launch ended early between two cases, and the rest goes on in another."""

    def visited(self, case: Case, time_s: float) -> None:
        share = _weight(case) / self._visits
        self._weights[case.id] = self._weights.get(case.id, 0.0) - share
        self._weight_done += share

    def finished(self, case: Case, time_s: float, status: str) -> None:
        self._count(Row(case, time_s, "" if status == "ok" else status))

    def failed(self, case: Case, reason: str) -> None:
        self._count(Row(case, None, f"failed: {reason}"))

    def skipped(self, case: Case, reason: str) -> None:
        self._count(Row(case, None, f"skipped: {reason}"))

    def row(self, row: Row) -> None: ...

    def end(self) -> None: ...

    def remaining_s(self) -> float | None:
        """Estimated from the work done so far; None before there is any."""
        left = sum(self._weights.values())
        if self._first is None or not self._weight_done:
            return None
        return (time.monotonic() - self._first) * left / self._weight_done

    def _count(self, row: Row) -> None:
        self.done += 1
        self._weight_done += self._weights.pop(row.case.id, 0.0)
        self.row(row)


def _weight(case: Case) -> float:
    """Work in one case, in an arbitrary unit: something for each case, and something for each byte moved."""
    return 1.0 + case.message_bytes * case.world_size / 2**20


class PlainDisplay(Display):
    """One line a finished case; for logs and pipes."""

    _waited_for = ""

    def waiting(self, text: str) -> None:
        if text != self._waited_for:
            self._waited_for = text
            print(text, file=sys.stderr, flush=True)

    def launching(self, ranks: int, hosts: Sequence[str]) -> None:
        print(_starting(ranks, hosts), file=sys.stderr, flush=True)

    def hosts(self, hosts: Sequence[Mapping[str, Any]]) -> None:
        if len(hosts) > 1:
            print("\n".join(_host_lines(hosts)), file=sys.stderr, flush=True)

    def broken(self, launch: int, reason: str) -> None:
        print(f"launch {launch} ended early: {reason}", file=sys.stderr, flush=True)

    def row(self, row: Row) -> None:
        outcome = row.note or f"{row.time}  {row.algbw}"
        print(f"[{self.done}/{self.total}] {row.case.id}  {outcome}", file=sys.stderr, flush=True)


class LiveDisplay(Display):
    """A bar, elapsed and remaining time, the case under way, and the last rows."""

    def __init__(self, console: Console, rows: int = 8) -> None:
        super().__init__()
        self._rows: deque[Row] = deque(maxlen=rows)
        self._progress = Progress(
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[times]}"),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._progress.add_task("", total=None, times="")
        self._begun = time.monotonic()
        self._under_way = "starting"
        # Two refreshes a second are enough for the eye and leave the CPU to the ranks.
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._render)

    def begin(self, manifest: Manifest, remaining: Sequence[Case], visits: int = 1) -> None:
        super().begin(manifest, remaining, visits)
        self._begun = time.monotonic()
        self._live.start()

    def waiting(self, text: str) -> None:
        self._under_way = text

    def launching(self, ranks: int, hosts: Sequence[str]) -> None:
        self._under_way = _starting(ranks, hosts)

    def hosts(self, hosts: Sequence[Mapping[str, Any]]) -> None:
        if len(hosts) > 1:
            for line in _host_lines(hosts):
                self._live.console.print(line, markup=False, highlight=False)

    def started(self, case: Case) -> None:
        super().started(case)
        self._under_way = case.id

    def moving(self, case: Case, bit_s: float) -> None:
        self._under_way = f"{case.id}: a long operation, {about_rate(bit_s)}"

    def broken(self, launch: int, reason: str) -> None:
        self._live.console.print(f"launch {launch} ended early: {reason}", markup=False, highlight=False)

    def row(self, row: Row) -> None:
        self._rows.append(row)

    def end(self) -> None:
        if self._live.is_started:
            self._under_way = ""
            self._live.stop()

    def _render(self) -> Group:
        left = self.remaining_s() if self.done < self.total else None
        times = f"{about_seconds(round(time.monotonic() - self._begun))} elapsed"
        if left is not None:
            times += f", about {about_seconds(round(left))} left"
        self._progress.update(
            self._task, completed=self.done, total=self.total, times=times, description=self._under_way
        )
        table = Table(box=None, pad_edge=False)
        for header, justify in (("case", "left"), ("time", "right"), ("algbw", "right"), ("", "left")):
            table.add_column(header, justify=justify, style="dim" if header == "" else "")  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(row.case.id, row.time, row.algbw, row.note)
        return Group(table, self._progress)


def _starting(ranks: int, hosts: Sequence[str]) -> str:
    return f"starting {ranks} ranks" + (f" on {len(hosts)} hosts" if len(hosts) > 1 else "")


def _host_lines(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for entry in hosts:
        interface = entry["interface"]
        mtu = f"MTU {interface['mtu_bytes']}" if interface["mtu_bytes"] else "MTU unknown"
        ranks = ", ".join(map(str, entry["ranks"]))
        lines.append(f"  {entry['host']}: rank {ranks}, {interface['name']} {entry.get('address', '')}, {mtu}")
    return lines


def make_display() -> Display:
    """The live view where stderr is a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    return LiveDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay()
