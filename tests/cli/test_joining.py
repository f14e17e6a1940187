"""The leader's port and those who come to it, netbench or not; no torch and no torchrun."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from synthetic import make_case, make_run

import netbench
from netbench.__main__ import run
from netbench.config import SweepConfig
from netbench.errors import Exit, LaunchError, UsageError
from netbench.job import Job
from netbench.join import _NODE_RANKS, node_rank_here
from netbench.launch import LAUNCHERS, check_alone
from netbench.line import Gone, Line
from netbench.nodes import JoinedNode, Node, Reception, Seat, UnderWay, Welcome

SEAT = Seat(host="beta", interface="lo", address="127.0.0.1", store_port=1)


@pytest.fixture
def reception() -> Iterator[Reception]:
    with closing(Reception("127.0.0.1", 0)) as opened:
        yield opened


def offer(rank: int) -> Welcome:
    return Welcome(node_rank=rank, interface="eth7", subnet=None)


def gather(reception: Reception, missing: set[int], limit_s: float = 10.0) -> list[JoinedNode]:
    return list(reception.gather(missing, offer, limit_s, lambda: None))


def connect(reception: Reception) -> Line:
    return Line(socket.create_connection((reception.address, reception.port), 5))


def linger(line: Line) -> None:
    """Stays connected until the other side has had enough."""
    with suppress(Gone):
        line.await_message(10, "an end")


def joined(reception: Reception, node_rank: int = 1) -> Line:
    """A host that has been taken and is ready."""
    line = connect(reception)
    line.tell(**hello(node_rank=node_rank))
    line.await_message(10, "a welcome")
    line.tell(ready=SEAT.model_dump())
    return line


def meanwhile(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def hello(**changes: object) -> dict[str, object]:
    return {"netbench": netbench.__version__, "host": "beta", "node_rank": 1} | changes


def test_a_host_that_joins_is_told_its_place_and_says_where_it_is_bound(reception: Reception) -> None:
    heard = []

    def join() -> None:
        line = connect(reception)
        line.tell(**hello(node_rank=None))
        heard.append(line.await_message(10, "a welcome"))
        line.tell(ready=SEAT.model_dump())
        heard.append(line.await_message(10, "an end"))

    thread = meanwhile(join)
    [node] = gather(reception, {3})
    assert (node.rank, node.seat) == (3, SEAT)
    node.leave(text="well", code=0)
    thread.join(10)
    assert heard == [
        {"welcome": {"node_rank": 3, "interface": "eth7", "subnet": None}},
        {"bye": {"text": "well", "code": 0}},
    ]


STRANGERS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"[]\n",
    b'{"netbench": 1}\n',
    b"\xff\xfe\n",
    b"{" * 100_000 + b"\n",
    json.dumps(hello() | {"node_rank": "one"}).encode() + b"\n",
    b"",
]


@pytest.mark.parametrize("said", STRANGERS, ids=range(len(STRANGERS)))
def test_who_is_no_netbench_is_passed_over(said: bytes, reception: Reception) -> None:
    def come() -> None:
        with socket.create_connection((reception.address, reception.port), 5) as stranger:
            stranger.sendall(said)
        linger(joined(reception))

    meanwhile(come)
    [node] = gather(reception, {1})
    assert node.seat == SEAT


def test_another_version_is_refused_on_both_sides(reception: Reception) -> None:
    heard = []

    def join() -> None:
        line = connect(reception)
        line.tell(**hello(netbench="0.0.0"))
        heard.append(line.await_message(10, "an answer"))

    thread = meanwhile(join)
    with pytest.raises(LaunchError, match=r"beta \(127\.0\.0\.1\) has netbench 0\.0\.0, .* install the same"):
        gather(reception, {1})
    thread.join(10)
    assert "install the same" in heard[0]["refused"]


def test_a_number_that_is_taken_is_refused_and_the_right_one_still_comes(reception: Reception) -> None:
    heard = []

    def join() -> None:
        wrong = connect(reception)
        wrong.tell(**hello(node_rank=0))
        heard.append(wrong.await_message(10, "an answer"))
        linger(joined(reception))

    meanwhile(join)
    [node] = gather(reception, {1})
    assert node.rank == 1
    assert heard == [{"refused": "node 0 is not missing here; those are: [1]"}]


def test_what_a_host_lacks_ends_the_wait_for_all(reception: Reception) -> None:
    def join() -> None:
        line = connect(reception)
        line.tell(**hello())
        line.await_message(10, "a welcome")
        line.tell(cannot="beta has no interface 'eth7'")
        linger(line)

    meanwhile(join)
    with pytest.raises(LaunchError, match=r"node 1, beta \(127\.0\.0\.1\): beta has no interface 'eth7'"):
        gather(reception, {1})


def test_who_does_not_come_is_named(reception: Reception) -> None:
    with pytest.raises(LaunchError, match=r"node 1, 2 did not come to 127\.0\.0\.1 port \d+ within 0 s"):
        gather(reception, {1, 2}, limit_s=0.1)


def test_waiting_in_vain_is_given_up_with_the_reason(reception: Reception) -> None:
    with pytest.raises(LaunchError, match="ssh ended"):
        list(reception.gather({1}, offer, 10.0, lambda: "ssh ended"))


def test_a_port_that_is_taken_is_a_mistake_with_its_name(reception: Reception) -> None:
    with pytest.raises(UsageError, match=rf"at 127\.0\.0\.1 port {reception.port}: Address already in use"):
        Reception("127.0.0.1", reception.port)


def test_messages_that_come_at_once_are_heard_one_by_one(reception: Reception) -> None:
    with connect(reception) as line:
        accepted, _ = reception._listener.accept()
        with Line(accepted) as other:
            other.tell(first=1)
            other.tell(second=2)
            assert line.await_message(5, "a message") == {"first": 1}
            assert line.await_message(5, "a message") == {"second": 2}
        with pytest.raises(Gone, match="its connection was closed"):
            line.await_message(5, "a message")


class Scripted(Node):
    """Ends by a list of answers."""

    def __init__(self, rank: int, *answers: int | None) -> None:
        super().__init__(rank, SEAT)
        self._answers = [*answers]

    def poll(self) -> int | None:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_a_launch_has_ended_when_all_of_its_nodes_have() -> None:
    launch = UnderWay([Scripted(0, None, 0), Scripted(1, None, None, 0)])
    assert [launch.poll() for _ in range(3)] == [None, None, 0]


def test_a_node_that_ended_badly_gives_the_others_time_and_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = UnderWay([Scripted(0, None), Scripted(1, 3)])
    assert launch.poll() is None
    monkeypatch.setattr("netbench.nodes._BROKEN_S", 0.0)
    assert launch.poll() == 3


def test_ranks_go_round_the_nodes() -> None:
    nodes = [Scripted(rank, 0) for rank in range(3)]
    launch = UnderWay(nodes)
    assert [launch.rank(node, local) for local in (0, 1) for node in nodes] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"nnodes": 2}, "--nnodes: 2 hosts need a place to meet; give --rdzv-endpoint"),
        ({"hosts": ["a"]}, "--hosts: is for --launcher ssh"),
        ({"launcher": "ssh"}, "--launcher ssh: needs --hosts"),
        ({"launcher": "ssh", "hosts": ["a", "b"], "nnodes": 3}, "--nnodes: 3 is not the count of --hosts, 2"),
        ({"launcher": "slurm"}, "not inside of an allocation"),
    ],
)
def test_what_a_launcher_lacks_is_named(options: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = SweepConfig(**options)
    with pytest.raises(UsageError, match=told):
        LAUNCHERS[config.launcher].nodes(config)


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"])
def test_several_commands_that_nothing_ties_together_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "4")
    with pytest.raises(UsageError, match=f"{name}=4: .* each would measure its own host"):
        check_alone(SweepConfig())
    check_alone(SweepConfig(nnodes=4, rdzv_endpoint="h:1"))
    monkeypatch.setenv(name, "1")
    check_alone(SweepConfig())


@pytest.mark.parametrize("name", ["SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"])
def test_the_number_of_a_node_is_the_schedulers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in _NODE_RANKS:
        monkeypatch.delenv(other, raising=False)
    assert node_rank_here() is None
    monkeypatch.setenv(name, "5")
    assert node_rank_here() == 5


def test_nobody_to_join_is_said_after_the_limit(reception: Reception, capsys: pytest.CaptureFixture[str]) -> None:
    port = reception.port
    reception.close()
    assert run(["join", f"127.0.0.1:{port}", "--join-timeout", "0.5"]) == Exit.LAUNCH
    assert f"nobody leads a sweep at 127.0.0.1 port {port} (Connection refused)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["join", "host0:x"], "'host0:x' is not HOST:PORT"),
        (["join", "no.such.host.invalid:1"], "finds no address for 'no.such.host.invalid'"),
        (["sweep", "--node-rank", "1"], "--node-rank: node 1 must know where node 0 is"),
        (["sweep", "--node-rank", "2", "--nnodes", "2", "--rdzv-endpoint", "h:1"], "2 is not one of 2 nodes"),
        (["sweep", "--lab", "2x100mbit", "--subnet", "10.0.0.0/8"], "--subnet: '10.0.0.0/8' and a lab exclude"),
        (["sweep", "--subnet", "203.0.113.0/24", "--dry-run"], "has no address in 203.0.113.0/24"),
        (["sweep", "--nnodes", "2", "--rdzv-endpoint", "203.0.113.7:1"], "is not this host"),
    ],
)
def test_a_mistake_about_hosts_names_the_value(typed: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == Exit.USAGE
    assert told in capsys.readouterr().err


def test_what_would_be_started_is_printed_a_command_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--print-launch", "--world-sizes", "3"]) == Exit.DONE
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("node 0: ")
    assert "-m torch.distributed.run --nnodes 1 --nproc-per-node 3 --rdzv-backend netbench" in line
    assert line.endswith("-m netbench.worker RUN/logs/launch-1.job.json")


def test_hosts_that_you_start_yourself_are_in_the_print(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["--nnodes", "3", "--rdzv-endpoint", "127.0.0.1:29400", "--node-rank", "0"]
    assert run(["sweep", "--print-launch", *typed]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" -m netbench ")[1] for line in lines[:2]] == [
        f"join 127.0.0.1:29400 --node-rank {rank}" for rank in (1, 2)
    ]
    assert [line.partition(":")[0] for line in lines[2:]] == ["node 0", "node 1", "node 2"]


def test_a_host_that_comes_too_late_waits_for_a_place_and_says_so(
    reception: Reception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("netbench.join._PATIENCE_S", 0.2)
    assert run(["join", reception.endpoint, "--node-rank", "1", "--join-timeout", "0.5"]) == Exit.LAUNCH
    err = capsys.readouterr().err
    assert "is under way with others; waiting for a place" in err
    assert "had no place for this host within 0 s" in err


def test_a_task_of_a_scheduler_knows_which_node_it_is(
    reception: Reception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")
    port = reception.port
    reception.close()
    typed = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--join-timeout", "0.3"]
    assert run(["sweep", *typed]) == Exit.LAUNCH
    assert f"nobody leads a sweep at 127.0.0.1 port {port}" in capsys.readouterr().err


def test_a_record_alone_does_not_start_programs_on_other_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = make_case()
    folder = make_run(tmp_path / "run", [], unmeasured=[case], status="interrupted")
    manifest = folder.read_manifest()
    config = SweepConfig(launcher="ssh", hosts=["alpha", "beta"], remote_python="/tmp/not-yours")
    manifest.config = config.model_dump()
    folder.write_manifest(manifest)
    for options in ([], ["--hosts", "alpha,beta"], ["--hosts", "alpha", "--remote-python", "/tmp/not-yours"]):
        assert run(["sweep", "--resume", str(folder.path), *options]) == Exit.USAGE
        assert "a record alone does not start programs on other hosts" in capsys.readouterr().err
    again = ["--hosts", "alpha,beta", "--remote-python", "/tmp/not-yours"]
    assert run(["sweep", "--resume", str(folder.path), *again, "--dry-run"]) == Exit.DONE
    assert case.id in capsys.readouterr().out


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_host_sends_of_its_ranks_end_never_replaces_node_0s_own_log(
    rank: int, reception: Reception, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", [], unmeasured=[make_case()])
    folder.log(1).write_text("all of it")

    def take_part() -> None:
        line = joined(reception, rank)
        line.await_message(10, "a launch")
        line.tell(ended=3, log="the end of it", reports=["no report"])
        linger(line)

    meanwhile(take_part)
    [node] = gather(reception, {rank})
    settings = {"iterations": 1, "warmup": 0, "pause_s": 0, "timeout_s": 1}
    node.start(Job(run_id="run", launch=1, run_folder=folder.path, cases=[make_case()], **settings), "127.0.0.1:1")
    node._hear(10)
    assert node.poll() == 3
    assert folder.log(1).read_text() == "all of it"
    assert folder.log(1, 1).is_file() == (rank == 1)
