"""iperf3's JSON (-J), over TCP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from netbench.importers.tool import Findings, Given, Misread, exact_case, number, objects, strict_json
from netbench.quotes import Quote

_SIDES = ("local_host", "remote_host")


class Iperf3:
    """iperf3 --json over TCP: the bytes that arrived and the time they took, one way or in both directions at once."""

    name = "iperf3"

    def recognises(self, text: str) -> bool:
        return text.lstrip().startswith("{") and '"iperf ' in text

    def read(self, text: str, given: Given) -> Findings:
        document = strict_json(text)
        if not isinstance(document, dict):
            raise Misread(1, "is no object")
        if document.get("error"):
            raise Misread(_line(text, "error"), f"the run failed: {document['error']}")
        start, end = (_section(text, document, name) for name in ("start", "end"))
        test = _section(text, start, "test_start")
        if test.get("protocol") != "TCP":
            raise Misread(_line(text, "protocol"), f"protocol is {test.get('protocol')}, not TCP")
        arrived = [_section(text, end, "sum_received")]
        if "sum_received_bidir_reverse" in end:
            arrived.append(_section(text, end, "sum_received_bidir_reverse"))
        line = _line(text, "sum_received")
        mode = given.the_mode("exchange" if len(arrived) == 2 else "send")
        world = given.the_world_size(2)
        # An exchange is over when both directions are: what the slower of them carried.
        size = min(int(number(line, "bytes", one.get("bytes"))) for one in arrived)
        seconds = max(number(line, "seconds", one.get("seconds")) for one in arrived)
        if size == 0 or seconds == 0:
            raise Misread(line, f"{size} bytes in {seconds} s are no measurement")
        retransmits = _section(text, end, "sum_sent").get("retransmits")
        streams = int(number(_line(text, "num_streams"), "num_streams", test.get("num_streams")))
        if streams < 1:
            raise Misread(_line(text, "num_streams"), f"num_streams is {streams}")
        hosts = [str(one[side]) for one in objects(start.get("connected")) for side in _SIDES if one.get(side)]
        quote = Quote(
            case=exact_case(line, mode, given.backend or "tcp", streams, world, "int8", size),
            iterations=1,
            mean_ns=seconds * 1e9,
            retransmits=None if retransmits is None else int(number(line, "retransmits", retransmits)),
        )
        return Findings(
            [quote],
            "all of the transfer, of the bytes that arrived",
            version=str(start.get("version", "")).removeprefix("iperf "),
            started_at=_when(start.get("timestamp")),
            hosts=list(dict.fromkeys(hosts)),
        )


def _when(timestamp: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(timestamp["timesecs"], UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


def _section(text: str, within: dict[str, Any], name: str) -> dict[str, Any]:
    section = within.get(name)
    if not isinstance(section, dict):
        raise Misread(_line(text, name), f"has no {name}")
    return section


def _line(text: str, key: str) -> int:
    """Where ``key`` stands last, since sums come after what they sum up; the last line where it is missing."""
    place = text.rfind(f'"{key}"')
    return text.count("\n", 0, place if place >= 0 else len(text.rstrip())) + 1
