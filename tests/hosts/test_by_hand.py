"""A sweep that is started by hand on separate hosts: a command on each, one record on node 0's."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from programs import Program, only_run

from netbench.errors import Exit

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = pytest.mark.lab

SMALL = [
    *("--modes", "all_gather,send_recv", "--backends", "gloo,tcp", "--streams", "1", "--world-sizes", "2"),
    *("--sizes", "64KiB", "--iterations", "4", "--rounds", "2", "--join-timeout", "60s"),
]
#: Cases of about half a second each, which leaves time to disturb them.
SLOW = [
    *("--modes", "allreduce", "--backends", "gloo", "--streams", "1", "--world-sizes", "2"),
    *("--sizes", "4KiB:64KiB:x2", "--iterations", "4", "--rounds", "1", "--warmup", "1", "--pause", "100ms"),
]


def finished(out: Path) -> set[str]:
    return only_run(out).finished() if any(out.glob("*/samples")) else set()


def listeners(hosts: Hosts, number: int) -> set[str]:
    """The addresses at which somebody listens in a host."""
    asked = subprocess.run(
        hosts[number].command(["ss", "--listening", "--tcp", "--numeric", "--no-header"]),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return {line.split()[3].rpartition(":")[0].strip("[]") for line in asked.stdout.splitlines()}


def test_two_hosts_make_one_record_and_listen_at_their_own_addresses_only(
    hosts: Callable[[str], Hosts], tmp_path: Path
) -> None:
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    leader = two.netbench(0, "sweep", *SMALL, "--nnodes", "2", "--rdzv-endpoint", place, "--out", str(tmp_path))
    # The same command line, but for the number of the node; its plan is not asked for.
    other = two.netbench(1, "sweep", "--nnodes", "2", "--rdzv-endpoint", place, "--node-rank", "1", "--out", "/nowhere")
    leader.wait_until(lambda: len(finished(tmp_path)) >= 1, "a finished case")
    assert listeners(two, 0) == {two[0].address}
    assert listeners(two, 1) <= {two[1].address}  # of a pair, the lower rank may be the only one that listens
    assert leader.end() == Exit.DONE, leader.err
    assert other.end() == Exit.DONE, other.err
    folder = only_run(tmp_path)
    assert f"the record is on {two_names(folder)[0].partition('(')[0]}: {folder.path}" in other.err
    assert "node 1 of the sweep at" in other.err
    assert "(the route to " in other.err

    manifest = folder.read_manifest()
    assert manifest.status == "finished"
    assert folder.finished() == {
        "all_gather-gloo-k1-n2-64KiB",
        "send_recv-gloo-k1-n2-64KiB",
        "send_recv-tcp-k1-n2-64KiB",
    }
    # Both call themselves the same here, so their addresses tell them apart.
    assert [(entry["address"], entry["ranks"]) for entry in manifest.environment] == [
        (two[0].address, [0]),
        (two[1].address, [1]),
    ]
    assert len(set(two_names(folder))) == 2
    assert leader.left_behind() == other.left_behind() == []


def under_way_on_two(hosts: Callable[[str], Hosts], out: Path) -> tuple[Hosts, Program, Program]:
    """Two hosts, the leader and the one that has joined, once a case of several is finished."""
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    leader = two.netbench(0, "sweep", *SLOW, "--nnodes", "2", "--rdzv-endpoint", place, "--out", str(out))
    other = two.netbench(1, "join", place)
    leader.wait_until(lambda: len(finished(out)) >= 1, "a finished case")
    return two, leader, other


def two_names(folder: object) -> list[str]:
    return [entry["host"] for entry in folder.read_manifest().environment]  # type: ignore[attr-defined]


def test_a_host_that_goes_costs_its_case_and_may_come_back(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two, leader, other = under_way_on_two(hosts, tmp_path)
    other.send(signal.SIGKILL)
    again = two.netbench(1, "join", f"{two[0].address}:29400")
    assert leader.end() == Exit.CASE_FAILED, leader.err
    assert again.end() == Exit.CASE_FAILED, again.err
    folder = only_run(tmp_path)
    [failure] = folder.read_manifest().failures
    assert failure.reason.startswith("node 1 (")
    assert f"{two[1].address}) has gone: its connection was closed" in failure.reason
    assert len(folder.finished()) == 4
    assert failure.case_id not in folder.finished()
    assert other.left_behind() == again.left_behind() == leader.left_behind() == []


def test_the_ranks_of_a_joined_host_end_with_the_leader(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two, leader, other = under_way_on_two(hosts, tmp_path)
    other.note_started()
    leader.send(signal.SIGKILL)
    assert leader.left_behind() == []
    assert other.end() == Exit.LAUNCH
    assert f"nobody leads a sweep at {two[0].address} port 29400" in other.err
    assert other.left_behind() == []
    assert len(finished(tmp_path)) >= 1


def test_ctrl_c_on_the_leader_ends_all_hosts_in_order(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    _, leader, other = under_way_on_two(hosts, tmp_path)
    other.note_started()
    leader.send(signal.SIGINT)
    assert leader.end() == Exit.INTERRUPTED
    assert other.end() == Exit.INTERRUPTED
    assert "the sweep has ended: stopped by SIGINT" in other.err
    assert leader.left_behind() == other.left_behind() == []


def test_a_link_that_stays_down_ends_the_sweep_with_the_host_named(
    hosts: Callable[[str], Hosts], tmp_path: Path
) -> None:
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    options = ["--nnodes", "2", "--rdzv-endpoint", place, "--join-timeout", "5s", "--timeout", "6s"]
    leader = two.netbench(0, "sweep", *SLOW, *options, "--out", str(tmp_path))
    other = two.netbench(1, "join", place, "--join-timeout", "5s")
    leader.wait_until(lambda: len(finished(tmp_path)) >= 1, "a finished case")
    other.note_started()
    subprocess.run(two[1].command(["ip", "link", "set", two[1].interface, "down"]), check=True, timeout=30)
    began = time.monotonic()
    assert leader.end() == Exit.LAUNCH, leader.err
    assert time.monotonic() - began < 60
    assert "node 1 (" in leader.err
    assert f"{two[1].address}) has gone: " in leader.err
    assert "node 1 did not come to" in leader.err
    assert "Traceback" not in leader.err
    assert other.end() == Exit.LAUNCH
    folder = only_run(tmp_path)
    assert folder.read_manifest().status == "failed"
    assert len(folder.finished()) >= 1
    assert leader.left_behind() == other.left_behind() == []


def test_hosts_that_meet_over_ipv6(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two = hosts("2x200mbit")
    for number in (0, 1):
        command = ["ip", "-6", "addr", "add", f"fd00:6::{number + 1}/64", "dev", two[number].interface, "nodad"]
        subprocess.run(two[number].command(command), check=True, timeout=30)
    options = ["--nnodes", "2", "--rdzv-endpoint", "[fd00:6::1]:29400", "--out", str(tmp_path)]
    leader = two.netbench(0, "sweep", *SMALL, *options)
    other = two.netbench(1, "join", "[fd00:6::1]:29400")
    assert leader.end() == Exit.DONE, leader.err
    assert other.end() == Exit.DONE, other.err
    environment = only_run(tmp_path).read_manifest().environment
    assert [entry["address"] for entry in environment] == ["fd00:6::1", "fd00:6::2"]
    assert len(finished(tmp_path)) == 3


def test_interfaces_of_different_names_are_found_by_their_subnet(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two = hosts("2x200mbit")
    link = ["ip", "link", "set", two[1].interface]
    for change in (["down"], ["name", "eth7"]):
        subprocess.run(two[1].command([*link, *change]), check=True, timeout=30)
    subnet = f"{two[0].address}/24"
    for change in (["link", "set", "eth7", "up"], ["route", "add", "198.18.0.0/24", "dev", "eth7"]):
        subprocess.run(two[1].command(["ip", *change]), check=True, timeout=30)
    options = ["--nnodes", "2", "--rdzv-endpoint", f"{two[0].address}:29400", "--subnet", subnet]
    leader = two.netbench(0, "sweep", *SMALL, *options, "--out", str(tmp_path))
    other = two.netbench(1, "join", f"{two[0].address}:29400")
    assert leader.end() == Exit.DONE, leader.err
    assert other.end() == Exit.DONE, other.err
    names = [entry["interface"]["name"] for entry in only_run(tmp_path).read_manifest().environment]
    assert names == [two[0].interface, "eth7"]


def refused(leader: Program, other: Program) -> str:
    """What the leader says of a sweep that cannot begin."""
    assert leader.end() == Exit.LAUNCH, leader.err
    other.end()
    assert "Traceback" not in leader.err
    assert leader.left_behind() == other.left_behind() == []
    return leader.err


def test_two_nodes_on_one_host_are_not_taken_for_two_hosts(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    one = hosts("2x200mbit")
    place = f"{one[0].address}:29400"
    leader = one.netbench(0, "sweep", *SMALL, "--nnodes", "2", "--rdzv-endpoint", place, "--out", str(tmp_path))
    told = refused(leader, one.netbench(0, "join", place))
    assert "one rank was asked for on each host, but rank 0 on " in told
    assert "never leaves it" in told


def test_a_pair_that_does_not_reach_each_other_is_named_before_anything_is_timed(
    hosts: Callable[[str], Hosts], tmp_path: Path
) -> None:
    three = hosts("3x200mbit")
    place = f"{three[0].address}:29400"
    blocked = ["ip", "route", "add", "prohibit", f"{three[2].address}/32"]
    subprocess.run(three[1].command(blocked), check=True, timeout=30)
    options = ["--world-sizes", "3", "--nnodes", "3", "--rdzv-endpoint", place, "--out", str(tmp_path)]
    leader = three.netbench(0, "sweep", *SMALL, *options)
    others = [three.netbench(number, "join", place, "--node-rank", str(number)) for number in (1, 2)]
    told = refused(leader, others[0])
    others[1].end()
    assert f"({three[1].interface} {three[1].address}) does not reach rank 2 on " in told
    assert "cables and firewalls" in told
    assert finished(tmp_path) == set()


def test_a_host_without_the_interface_asked_for_says_so_to_all(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    leader = two.netbench(0, "sweep", *SMALL, "--nnodes", "2", "--rdzv-endpoint", place, "--out", str(tmp_path))
    other = two.netbench(1, "join", place, GLOO_SOCKET_IFNAME="eth9")
    assert other.end() == Exit.USAGE
    assert leader.end() == Exit.LAUNCH
    for told in (leader.err, other.err):
        assert "GLOO_SOCKET_IFNAME: " in told
        assert "has no interface 'eth9'" in told
    assert "node 1, " in leader.err
    assert f"({two[1].address}): " in leader.err


def test_the_record_says_who_was_there(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    options = ["--nnodes", "2", "--nproc-per-node", "2", "--world-sizes", "2,3,4,5", "--rdzv-endpoint", place]
    leader = two.netbench(0, "sweep", *SMALL, *options, "--modes", "allreduce", "--out", str(tmp_path))
    other = two.netbench(1, "join", place, "--host-name", "far")
    assert leader.end() == Exit.DONE, leader.err
    assert other.end() == Exit.DONE, other.err
    manifest = only_run(tmp_path).read_manifest()
    # Neighbours are on different hosts, so that two ranks cross the network too.
    assert [(entry["host"], entry["ranks"]) for entry in manifest.environment][1] == ("far", [1, 3])
    assert [entry["ranks"] for entry in manifest.environment] == [[0, 2], [1, 3]]
    reasons = {skip.reason for skip in manifest.skips if "-n5-" in skip.id}
    assert "2 hosts with 2 ranks each have no 5 ranks; see --nproc-per-node" in reasons
    shown = json.loads(manifest.model_dump_json())
    assert shown["config"]["nnodes"] == 2


def under_way(out: Path) -> bool:
    """Whether a case has been started that is not on disk yet, after one that is."""
    folder = only_run(out)
    told = [json.loads(line) for line in folder.events(1).read_text().splitlines()]
    started = [event["case_id"] for event in told if event["event"] == "started"]
    return len(folder.finished()) >= 1 and started[-1] not in folder.finished()


@pytest.mark.parametrize(
    ("sent", "told"), [(signal.SIGKILL, " was ended by SIGKILL"), (signal.SIGSTOP, " has been stopped")]
)
def test_a_rank_that_is_lost_on_a_joined_host_is_named_with_its_host(
    sent: signal.Signals, told: str, hosts: Callable[[str], Hosts], tmp_path: Path
) -> None:
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    options = ["--nnodes", "2", "--rdzv-endpoint", place, "--timeout", "5s", "--out", str(tmp_path)]
    leader = two.netbench(0, "sweep", *SLOW, *options)
    other = two.netbench(1, "join", place, "--host-name", "far")
    leader.wait_until(lambda: bool(finished(tmp_path)) and under_way(tmp_path), "a case under way")
    [lost] = other.workers().values()
    lost.send_signal(sent)
    assert leader.end() == Exit.CASE_FAILED, leader.err
    assert other.end() == Exit.CASE_FAILED, other.err
    [failure] = only_run(tmp_path).read_manifest().failures
    assert failure.reason.startswith(f"rank 1 on far (pid {lost.pid}){told}")
    assert len(finished(tmp_path)) == 4
    assert leader.left_behind() == other.left_behind() == []


def test_loopback_across_hosts_is_refused_with_the_fix(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    two = hosts("2x200mbit")
    place = f"{two[0].address}:29400"
    leader = two.netbench(0, "sweep", *SMALL, "--nnodes", "2", "--rdzv-endpoint", place, "--out", str(tmp_path))
    told = refused(leader, two.netbench(1, "join", place, "--interface", "lo", "--host-name", "far"))
    assert "rank 1 on far (lo 127.0.0.1) is bound to loopback" in told
    assert "give --subnet, or an --interface that far has" in told


def test_every_pair_of_hosts_is_measured_by_matrix(hosts: Callable[[str], Hosts], tmp_path: Path) -> None:
    three = hosts("3x200mbit")
    place = f"{three[0].address}:29400"
    options = ["--size", "64KiB", "--budget", "0.05", "--format", "json", "--out", str(tmp_path)]
    leader = three.netbench(0, "matrix", "--nnodes", "3", "--rdzv-endpoint", place, *options)
    others = [three.netbench(number, "join", place, "--host-name", f"far{number}") for number in (1, 2)]
    assert leader.end() == Exit.DONE, leader.err
    assert [other.end() for other in others] == [Exit.DONE, Exit.DONE]
    rows = json.loads(leader.out)
    named = {frozenset((row["host_a"], row["host_b"])) for row in rows}
    assert len(named) == 3
    assert frozenset(("far1", "far2")) in named
