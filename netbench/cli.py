"""The command line: options in, one call, output out. What a command does lives elsewhere.

The reading half (pandas, matplotlib) and the launch are imported inside the commands that use them, so that help,
lists and dry runs answer at once.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import netbench
from netbench import config as configuration
from netbench.errors import (
    Exit,
    LaunchError,
    NetbenchError,
    RecordError,
    Stopped,
    StorageError,
    UsageError,
    did_you_mean,
)
from netbench.foreign import printable
from netbench.outlets import let_go_of_stdout
from netbench.plan import Plan, make_plan
from netbench.registry import Registry, Thing
from netbench.units import about_seconds, format_bytes, parse_bytes

if TYPE_CHECKING:
    from netbench.lab import LabEntry
    from netbench.record import Manifest, RunFolder
    from netbench.summary import Run

Value = TypeVar("Value")

app = typer.Typer(
    name="netbench",
    help="Measures what torch.distributed really gets out of a network over TCP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say(text: str) -> None:
    """A message on standard error; what may be in a file's name does not command the terminal."""
    print(printable(text, lines=True), file=sys.stderr)


def _command_line() -> list[str]:
    """What was typed, as it is recorded."""
    return ["netbench", *map(printable, sys.argv[1:])]


def _version(asked: bool) -> None:
    if asked:
        print(f"netbench {netbench.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def _axis(key: str, help: str) -> Any:
    """An option that is a key of SweepConfig, with its default in the help."""
    field = configuration.SweepConfig.model_fields[key]
    default = field.default
    if key == "sizes":
        default = [format_bytes(size) for size in default]
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    return typer.Option(metavar="...", help=f"{help} [default: {shown}]" if shown else help)


#: Where the ranks are: options of every command that measures, and keys of SweepConfig.
Interface = Annotated[str | None, _axis("interface", "What Gloo is bound to; lo, or the route to node 0.")]
Subnet = Annotated[str | None, _axis("subnet", "On each host the interface with an address in it.")]
LauncherName = Annotated[
    str | None, _axis("launcher", "What starts the ranks on other hosts: local (you), ssh, slurm.")
]
HostNames = Annotated[str | None, _axis("hosts", "For ssh: the hosts, as a,b,c; the first has rank 0.")]
Nodes = Annotated[str | None, _axis("nnodes", "How many hosts take part; 1 unless given.")]
RanksPerNode = Annotated[str | None, _axis("nproc_per_node", "Ranks on each host; 1 on several.")]
Endpoint = Annotated[
    str | None, _axis("rdzv_endpoint", "Where they meet: an address of node 0's host, as host0:29400.")
]
JoinTimeout = Annotated[str | None, _axis("join_timeout", "How long hosts wait for each other.")]
RemotePython = Annotated[str | None, _axis("remote_python", "Python with netbench on the other hosts.")]


@app.command()
def sweep(
    config: Annotated[
        str | None,
        typer.Argument(metavar="[CONFIG.toml]", help="A file, or a preset's name; options override it."),
    ] = None,
    modes: Annotated[str | None, _axis("modes", "What is run, as send_recv,all_gather,allreduce.")] = None,
    backends: Annotated[str | None, _axis("backends", "Over what, as gloo,parallel_gloo.")] = None,
    streams: Annotated[str | None, _axis("streams", "Stream counts, as 1,2,4,10,20.")] = None,
    world_sizes: Annotated[str | None, _axis("world_sizes", "Numbers of ranks, as 2,3,4.")] = None,
    dtypes: Annotated[str | None, _axis("dtypes", "Element types, as float32,bfloat16.")] = None,
    sizes: Annotated[
        str | None, _axis("sizes", "Bytes: a list as 10KB,1MB or a range as 1KiB:64MiB:x4, or both.")
    ] = None,
    sizes_of: Annotated[
        str | None, _axis("sizes_of", "What the sizes fix: tensor, message (S) or transmit (T) bytes.")
    ] = None,
    chunks: Annotated[str | None, _axis("chunks", "Operations that carry each stream's part, in turn.")] = None,
    entry_delays: Annotated[str | None, _axis("entry_delays", "How much later the last rank begins, as 0,5ms.")] = None,
    mallocs: Annotated[str | None, _axis("mallocs", "Memory of freed buffers: default, or keep it.")] = None,
    timelines: Annotated[
        str | None, _axis("timelines", "Read the interface's counters so often during a case, as 0,2ms.")
    ] = None,
    pairs: Annotated[
        str | None, _axis("pairs", "Between two ranks alone: 0-1,1-3, or all pairs, or none: between all ranks.")
    ] = None,
    iterations: Annotated[
        str | None, _axis("iterations", "Timed iterations of each case, exactly; auto: as many as it takes.")
    ] = None,
    budget: Annotated[str | None, _axis("budget", "Where auto: seconds for each case in a launch.")] = None,
    precision: Annotated[
        str | None, _axis("precision", "Where auto: enough when the median is known so well, as 5%.")
    ] = None,
    rounds: Annotated[str | None, _axis("rounds", "Visits to each case in a launch, interleaved.")] = None,
    launches: Annotated[str | None, _axis("launches", "How often the workers are started anew.")] = None,
    rigorous: Annotated[
        bool, typer.Option("--rigorous", help="Short for --budget 3s --precision 2% --launches 3.")
    ] = False,
    warmup: Annotated[str | None, _axis("warmup", "Iterations before them, recorded but not counted.")] = None,
    pause: Annotated[str | None, _axis("pause", "Between iterations, as 0.1 or 100ms.")] = None,
    timeout: Annotated[str | None, _axis("timeout", "Limit of one operation, as 60 or 60s.")] = None,
    interface: Interface = None,
    subnet: Subnet = None,
    launcher: LauncherName = None,
    hosts: HostNames = None,
    nnodes: Nodes = None,
    node_rank: Annotated[
        int | None,
        typer.Option(metavar="K", min=0, help="Which of them this is; 0 leads and has the record, the rest join it."),
    ] = None,
    nproc_per_node: RanksPerNode = None,
    rdzv_endpoint: Endpoint = None,
    join_timeout: JoinTimeout = None,
    remote_python: RemotePython = None,
    lab: Annotated[str | None, _axis("lab", "Run in emulated hosts with a known link, as 4x200mbit.")] = None,
    seed: Annotated[str | None, _axis("seed", "Fixes the random order of the cases.")] = None,
    name: Annotated[str | None, _axis("name", "A word in the run's id.")] = None,
    question: Annotated[str | None, _axis("question", "What the run is to answer, a line.")] = None,
    out: Annotated[str | None, _axis("out", "Where runs are put.")] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="CASE_ID_OR_GLOB", help="Run only these cases, as 'allreduce-*-n2-*'."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print cases and skips; start nothing.")] = False,
    print_launch: Annotated[
        bool, typer.Option("--print-launch", help="Print the commands that would start the ranks; start nothing.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run what is missing in this run, and repeat nothing.")
    ] = None,
) -> None:
    """Launch torchrun workers and measure the product of the axes; every option is a TOML key of the same name."""
    given = dict(locals())
    options = {key: given[key] for key in configuration.SweepConfig.model_fields if given[key] is not None}
    if rigorous:
        options = configuration.RIGOROUS | options
    if resume is not None:
        if node_rank:
            raise UsageError("--resume: node 0 has the run; start the others with netbench join")
        given_too = [*options, *(["CONFIG.toml"] if config else []), *(["only"] if only else [])]
        if left_out := [key for key in given_too if key not in _GIVEN_AGAIN]:
            raise UsageError(f"--resume: takes everything from the run itself; leave out {', '.join(left_out)}")
        _resume(resume, dry_run, options)
        return
    settings = configuration.resolve(configuration.preset(config) if config else _default(), options)
    if node_rank is None and (settings.nnodes or 1) > 1 and settings.launcher == "local":
        from netbench.join import node_rank_here

        node_rank = node_rank_here()
    if node_rank:
        raise typer.Exit(_join(settings, node_rank))
    plan = make_plan(settings)
    if only:
        plan = plan.only(only)
    plan = _runnable(settings, plan, "--interface" if interface else f"{config}: sweep.interface")
    if print_launch:
        from netbench.crew import launch_commands

        for line in launch_commands(settings, plan.world_size):
            print(line)
    elif dry_run:
        _print_plan(plan)
    else:
        _run(*_new_run(settings, plan))


def _join(settings: configuration.SweepConfig, node_rank: int) -> int:
    """Takes part in the sweep that node 0 leads; gives the exit code that it ends with."""
    from netbench.join import Member

    if settings.rdzv_endpoint is None:
        raise UsageError(f"--node-rank: node {node_rank} must know where node 0 is; give --rdzv-endpoint HOST:PORT")
    if node_rank >= (settings.nnodes or 1):
        raise UsageError(f"--node-rank: {node_rank} is not one of {settings.nnodes or 1} nodes; they count from 0")
    member = Member(settings.rdzv_endpoint, node_rank, settings.interface, settings.subnet)
    return member.run(settings.join_timeout)


@app.command()
def join(
    endpoint: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where node 0 of the sweep is.")],
    node_rank: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Which node this is; as the scheduler or node 0 says.")
    ] = None,
    interface: Annotated[str | None, typer.Option(help="What Gloo is bound to here, if not as on node 0.")] = None,
    subnet: Annotated[str | None, typer.Option(help="Its address is in this one, if not as on node 0.")] = None,
    host_name: Annotated[
        str | None, typer.Option(help="What the record calls this host; its own name by default.")
    ] = None,
    join_timeout: Annotated[str, typer.Option(help="How long node 0 is waited for.")] = "300s",
) -> None:
    """Take part in a sweep that another host leads, until it ends; what --launcher ssh and slurm start on each host."""
    from netbench.join import Member, node_rank_here
    from netbench.units import parse_seconds

    rank = node_rank_here() if node_rank is None else node_rank
    limit_s = _read("--join-timeout", parse_seconds, join_timeout)
    raise typer.Exit(Member(endpoint, rank, interface, subnet, host_name).run(limit_s))


def _runnable(settings: configuration.SweepConfig, plan: Plan, place: str = "--interface") -> Plan:
    """What this host can run of ``plan``; ``place`` is where the interface was named. Raises UsageError."""
    from netbench.interfaces import choose
    from netbench.launch import LAUNCHERS, check_alone
    from netbench.sweep import fit_to_memory

    launcher = LAUNCHERS[settings.launcher]
    check_alone(settings)
    if settings.lab:
        for key, value in (("--interface", settings.interface), ("--subnet", settings.subnet)):
            if value:
                raise UsageError(f"{key}: {value!r} and a lab exclude each other; its hosts have their own")
        if launcher.nodes(settings) > 1:
            raise UsageError(f"--lab: {settings.lab} is on one host, and excludes others")
    else:
        choose(settings.interface, settings.subnet, launcher.peer(settings), os.environ, name_from=place)
    return fit_to_memory(plan, launcher.nodes(settings))


def _new_run(settings: configuration.SweepConfig, plan: Plan) -> tuple[RunFolder, Manifest]:
    from netbench.sweep import new_run

    if not plan.cases:
        raise UsageError(f"nothing to run: all {len(plan.skips)} cases are skips\n{_reasons(plan)}")
    return new_run(settings, plan, _command_line())


def _default() -> Path | None:
    return configuration.presets().get("default")


#: What makes other hosts run a command is not taken from a record, which may be a stranger's, but given again.
_GIVEN_AGAIN = ("hosts", "remote_python")


def _resume(path: Path, dry_run: bool, options: dict[str, Any]) -> None:
    from netbench.samples import damaged
    from netbench.sweep import mend, resumed_run

    folder, manifest = resumed_run(path)
    again = configuration.resolve(None, options).model_dump(include={*_GIVEN_AGAIN})
    for key, given in again.items():
        option, recorded = f"--{key.replace('_', '-')}", manifest.config.get(key)
        if given != recorded:
            told = ",".join(recorded) if isinstance(recorded, list) else recorded
            made = f"with {option} {told}" if recorded else f"without {option}"
            raise UsageError(
                f"--resume: the run was made {made}, and only goes on so if the command says the same: a record alone "
                "does not start programs on other hosts"
            )
    if dry_run:
        unsound = {path for path in damaged(folder, manifest.run_id) if path.parent == folder.samples}
        finished = folder.finished() - {path.stem for path in unsound}
        _print_plan(Plan(tuple(case for case in manifest.cases if case.id not in finished), ()))
        return
    for line in mend(folder, manifest):
        _say(line)
    finished = folder.finished()
    missing = tuple(case for case in manifest.cases if case.id not in finished)
    _say(f"{len(missing)} of {len(manifest.cases)} cases are missing")
    _run(folder, manifest)


def _run(folder: RunFolder, manifest: Manifest) -> None:
    """Runs a sweep to its end, then prints its table, where its record lies, and how to go on."""
    ended = _measure(folder, manifest)
    try:
        _print_end(folder)
    except NetbenchError:
        if ended is None:
            raise
    _raise_end(folder, ended)


def _measure(folder: RunFolder, manifest: Manifest) -> NetbenchError | None:
    """Runs a sweep to its end and gives what ended it early."""
    from netbench.display import make_display
    from netbench.sweep import Sweep

    if manifest.skips:
        print(
            f"{len(manifest.skips)} cases are skipped:\n{_reasons(Plan((), tuple(manifest.skips)))}",
            file=sys.stderr,
        )
    try:
        Sweep(folder, manifest, make_display()).run()
    except NetbenchError as error:
        return error
    return None


def _raise_end(folder: RunFolder, ended: NetbenchError | None) -> None:
    """Raises what ended a sweep early, with how to go on, or else that not all of its cases ended well."""
    if isinstance(ended, Stopped):
        raise Stopped(f"{ended}; go on with: {_resume_command(folder)}", ended.exit_code)
    if isinstance(ended, LaunchError):
        raise LaunchError(f"{ended}\ngo on with: {_resume_command(folder)}")
    if isinstance(ended, StorageError) and folder.manifest.is_file():
        raise StorageError(f"{ended}\nthen go on with: {_resume_command(folder)}")
    if ended is not None:
        raise ended
    _raise_for_cases(folder)


def _resume_command(folder: RunFolder) -> str:
    more: list[str] = []
    with suppress(NetbenchError):  # without its manifest nothing goes on anyway
        config = folder.read_manifest().config
        for key in _GIVEN_AGAIN:
            if value := config.get(key):
                more += [f"--{key.replace('_', '-')}", ",".join(value) if isinstance(value, list) else str(value)]
    return shlex.join(["netbench", "sweep", "--resume", str(folder.path), *more])


def _print_end(folder: RunFolder) -> None:
    from netbench.summary import load_run
    from netbench.tables import write_summary, write_table

    run = load_run(folder.path)
    if not folder.measured():
        return
    try:
        write_table([run], "Gbit/s", sys.stdout)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich makes a SystemExit of it
        # How the sweep ended is not for the reader of a pipe to decide.
        let_go_of_stdout()
    finally:
        write_summary(run)
    _say(f"record: {folder.path}\nplot it: netbench plot {shlex.quote(str(folder.path))}")


def _raise_for_cases(folder: RunFolder) -> None:
    """Raises NetbenchError (exit code 1) when a case failed or moved wrong data."""
    from netbench.summary import load_run

    cases = load_run(folder.path).summaries()
    bad = cases[cases["status"].isin(["failed", "wrong"])]
    if len(bad):
        lines = [
            f"  {case_id}: {status}: {reason}"
            for case_id, status, reason in zip(bad["case_id"], bad["status"], bad["reason"], strict=True)
        ]
        if (bad["status"] == "failed").any():
            lines.append(f"what the ranks said is in {folder.logs}; try again what failed: {_resume_command(folder)}")
        raise NetbenchError(f"{len(bad)} of {len(cases)} cases did not end well:\n" + "\n".join(lines))


def _print_plan(plan: Plan) -> None:
    for case in plan.cases:
        print(
            f"{case.id}  tensor={case.tensor_bytes} B  message={case.message_bytes} B  transmit={case.transmit_bytes} B"
        )
    for skip in plan.skips:
        print(f"skip {skip.id}  {skip.reason}")
    _say(f"{len(plan.cases)} cases for {plan.world_size} ranks, {len(plan.skips)} skips")


def _reasons(plan: Plan) -> str:
    counts = Counter(skip.reason for skip in plan.skips)
    return "\n".join(f"  {count} x {reason}" for reason, count in counts.items())


Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH...", help="Runs, or folders that hold runs.", show_default="results"),
]


LineRate = Annotated[
    str | None,
    typer.Option("--line-rate", metavar="RATE", help="What the link can carry, headers included, as 10gbit."),
]
Silence = Annotated[
    str | None, typer.Option("--silence", metavar="NAME,...", help="Verdicts that are not wanted, as trend,bimodal.")
]


class _Runs(list["Run"]):
    """The runs that a command was given, and why others of them cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: list[str] = []

    def raise_for_damage(self) -> None:
        """Raises RecordError (exit code 4) where a part of it all cannot be read. The rest has been shown."""
        lost = [*self.unreadable, *(line for run in self for line in run.damage)]
        if not lost:
            return
        way_out = "restore it from a copy"
        if resumable := [run for run in self if run.damage and run.manifest.source is None]:
            way_out += f", or measure it anew: netbench sweep --resume {shlex.quote(str(resumable[0].folder.path))}"
        raise RecordError("\n  ".join(["what is shown is without what cannot be read:", *lost]) + f"\n{way_out}")


def _runs(paths: list[Path] | None, line_rate: str | None = None, silence: str | None = None) -> _Runs:
    """The runs at the paths; of several, those that can be read. Raises RecordError where none can."""
    from netbench.summary import find_runs, load_run
    from netbench.units import parse_rate
    from netbench.verdicts import named

    found = dict.fromkeys(run for path in paths or [Path("results")] for run in find_runs(path))
    line_bit_s = None if line_rate is None else _read("--line-rate", parse_rate, line_rate)
    silenced = _read("--silence", named, silence or "")
    runs = _Runs()
    for path in found:
        try:
            runs.append(load_run(path, line_bit_s, silenced))
        except RecordError as error:
            if len(found) == 1:
                raise
            runs.unreadable.append(str(error))
    if not runs:
        raise RecordError("\n  ".join(["none of these runs can be read:", *runs.unreadable]))
    return runs


def _raise_for_damage(*runs: Run) -> None:
    """Raises RecordError (exit code 4) where a part of these runs cannot be read. The rest has been shown."""
    found = _Runs()
    found.extend(runs)
    found.raise_for_damage()


def _read(option: str, reader: Callable[[str], Value], text: str) -> Value:
    """What an option says. Raises UsageError with its name."""
    try:
        return reader(text)
    except (ValueError, UsageError) as error:
        raise UsageError(f"{option}: {error}") from None


def _refuse_with_run(path: Path, options: Iterable[str], dry_run: bool = False) -> None:
    """Raises UsageError when a command that is given a run is also told how to measure one."""
    given_too = [f"--{key.replace('_', '-')}" for key in options] + ["--dry-run"] * dry_run
    if given_too:
        raise UsageError(f"{path}: names a run that is there already; leave out {', '.join(given_too)}")


@app.command()
def explain(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A run to explain; without it, one is measured.")
    ] = None,
    lab: Annotated[str | None, _axis("lab", "Measure between emulated hosts, as 3x200mbit.")] = None,
    interface: Interface = None,
    subnet: Subnet = None,
    launcher: LauncherName = None,
    hosts: HostNames = None,
    nnodes: Nodes = None,
    nproc_per_node: RanksPerNode = None,
    rdzv_endpoint: Endpoint = None,
    join_timeout: JoinTimeout = None,
    remote_python: RemotePython = None,
    out: Annotated[str | None, _axis("out", "Where the run is put.")] = None,
    size: Annotated[
        str | None, typer.Option(metavar="...", help="Bytes that each rank sends; by default, what suits the path.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the experiments' cases; start nothing.")] = False,
) -> None:
    """Say why all_gather takes longer than its bytes: measure what separates the causes, and print the verdicts."""
    given = dict(locals())
    begun = time.monotonic()
    options = {key: given[key] for key in (*configuration.PLACE, "size") if given[key] is not None}
    ended: NetbenchError | None = None
    if path is None:
        from netbench.experiments import Setting, whole_plan

        setting = Setting.of(options)
        plan = _runnable(setting.config(), whole_plan(setting))
        if dry_run:
            _print_plan(plan)
            return
        folder, manifest = _new_run(setting.config(), plan)
        ended = _measure(folder, manifest)
        if isinstance(ended, Stopped) or (ended is not None and not folder.finished()):
            _raise_end(folder, ended)
        path = folder.path
    else:
        _refuse_with_run(path, options, dry_run)
    from netbench.explain.report import explain, write_report, write_verdicts

    explanation = explain(_run_at(path))
    write_verdicts(explanation, sys.stdout)
    sys.stdout.flush()
    _say(f"report: {write_report(explanation)}\nin {about_seconds(time.monotonic() - begun)}")
    _raise_end(explanation.run.folder, ended)
    _raise_for_damage(explanation.run)


@app.command()
def tune(
    path: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run to take the table from; without it, one is measured.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the table is put; tuning.json in the run unless given.")
    ] = None,
    modes: Annotated[str | None, typer.Option(metavar="...", help="Operations to tune.")] = None,
    streams: Annotated[str | None, typer.Option(metavar="...", help="Stream counts to try.")] = None,
    world_sizes: Annotated[str | None, typer.Option(metavar="...", help="Numbers of ranks to tune for.")] = None,
    sizes: Annotated[str | None, typer.Option(metavar="...", help="Tensor bytes to tune for.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="...", help="Seconds for each case.")] = None,
    lab: Annotated[str | None, _axis("lab", "Tune for emulated hosts, as 2x400mbit,flow=40mbit.")] = None,
    interface: Interface = None,
    subnet: Subnet = None,
    launcher: LauncherName = None,
    hosts: HostNames = None,
    nnodes: Nodes = None,
    nproc_per_node: RanksPerNode = None,
    rdzv_endpoint: Endpoint = None,
    join_timeout: JoinTimeout = None,
    remote_python: RemotePython = None,
    out: Annotated[str | None, _axis("out", "Where the run is put.")] = None,
) -> None:
    """Find the fastest schedule and stream count for each operation and size; write them for ParallelProcessGroup."""
    given = dict(locals())
    options = {
        key: given[key]
        for key in configuration.SweepConfig.model_fields
        if given.get(key) is not None and key != "path"
    }
    ended: NetbenchError | None = None
    if path is None:
        settings = configuration.resolve(configuration.preset("tune"), options)
        folder, manifest = _new_run(settings, _runnable(settings, make_plan(settings)))
        ended = _measure(folder, manifest)
        if ended is not None:
            _raise_end(folder, ended)
        path = folder.path
    else:
        _refuse_with_run(path, options)
    from netbench import tune as tuner
    from netbench.tuning import write_table

    run = _run_at(path)
    found, findings = tuner.tune(run)
    for line in tuner.lines(findings):
        print(line)
    sys.stdout.flush()
    target = table or run.folder.path / "tuning.json"
    write_table(target, found)
    _say(f"table: {target}\nuse it: NETBENCH_TUNING={shlex.quote(str(target))}")
    _raise_for_damage(run)


ListingName = Annotated[str, typer.Option("--format", help="table, csv or json.")]


@app.command()
def matrix(
    path: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run to judge; without it, one is measured.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=2, help="How many hosts (ranks); all hosts of a lab, or else 2.")
    ] = None,
    latency_size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="The message that tells latency. [default: 8B]")
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="The message that tells bandwidth. [default: 8MiB]")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Over what. [default: gloo]")] = None,
    streams: Annotated[str | None, typer.Option(metavar="K", help="How many streams. [default: 1]")] = None,
    budget: Annotated[str | None, _axis("budget", "Seconds for each case.")] = None,
    lab: Annotated[str | None, _axis("lab", "Measure between emulated hosts, as 4x200mbit.")] = None,
    interface: Interface = None,
    subnet: Subnet = None,
    launcher: LauncherName = None,
    hosts: HostNames = None,
    nnodes: Nodes = None,
    nproc_per_node: RanksPerNode = None,
    rdzv_endpoint: Endpoint = None,
    join_timeout: JoinTimeout = None,
    remote_python: RemotePython = None,
    out: Annotated[str | None, _axis("out", "Where the run is put.")] = None,
    margin: Annotated[str, typer.Option(help="A pair is slow when surely worse than usual by more than this.")] = "20%",
    fail_on: Annotated[str | None, typer.Option(metavar="slow", help="Exit with 1 if a pair is slow.")] = None,
    format: ListingName = "table",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the pairs' cases; start nothing.")] = False,
) -> None:
    """Measure latency and bandwidth of every pair of hosts, one pair at a time, and name the pairs that are slow."""
    given = dict(locals())
    from netbench.backends import BACKENDS
    from netbench.lab import LabSpec
    from netbench.launch import LAUNCHERS
    from netbench.listing import LISTINGS

    listing, share = _member("--format", LISTINGS, format), _read("--margin", configuration.parse_share, margin)
    failing = _choices("--fail-on", ("slow",), fail_on)
    own = ("world_size", "latency_size", "size", "backend", "streams", "budget")
    options: dict[str, object] = {key: given[key] for key in (*own, *configuration.PLACE) if given[key] is not None}
    ended: NetbenchError | None = None
    if path is None:
        small = _read("--latency-size", parse_bytes, str(options.pop("latency_size", "8B")))
        large = _read("--size", parse_bytes, str(options.pop("size", "8MiB")))
        if small >= large:
            raise UsageError(f"--latency-size: {format_bytes(small)} is not less than --size {format_bytes(large)}")
        place = configuration.resolve(None, {key: options[key] for key in configuration.PLACE if key in options})
        count = LabSpec.parse(place.lab).hosts if place.lab else LAUNCHERS[place.launcher].nodes(place)
        options["world_sizes"] = [options.pop("world_size", max(2, count * (place.nproc_per_node or 1)))]
        options["backends"] = [_member("--backend", BACKENDS, str(options.pop("backend", "gloo"))).name]
        options["sizes"] = [small, large]
        settings = configuration.resolve(configuration.preset("matrix"), options)
        plan = _runnable(settings, make_plan(settings))
        if dry_run:
            _print_plan(plan)
            return
        folder, manifest = _new_run(settings, plan)
        ended = _measure(folder, manifest)
        if isinstance(ended, Stopped) or (ended is not None and not folder.finished()):
            _raise_end(folder, ended)
        path = folder.path
    else:
        _refuse_with_run(path, options, dry_run)
    from netbench.figures import write_plots
    from netbench.matrix import matrices, write_matrices

    run = _run_at(path)
    found = matrices(run, share)
    write_matrices(found, listing, sys.stdout, sys.stderr)
    sys.stdout.flush()
    for figure in write_plots([run], names=["matrix"]):
        _say(f"figure: {figure}")
    _raise_end(run.folder, ended)
    slow = sum(one.count_slow() for one in found)
    if failing and slow:
        raise NetbenchError(f"--fail-on: {slow} slow pair{'s' if slow > 1 else ''}")
    _raise_for_damage(run)


Rate = Annotated[str, typer.Option(help="Unit of bandwidth: Gbit/s or GB/s.")]
ThemeName = Annotated[str, typer.Option("--theme", help="print (dark on white) or dark.")]
OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="The run, or a folder that holds one.")]


@app.command()
def plot(
    paths: Paths = None,
    figures: Annotated[
        str | None, typer.Option(metavar="...", help="Only these, as bandwidth,speedup; see netbench list.")
    ] = None,
    overlay: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw all runs into the same axes, into this folder.")
    ] = None,
    theme: ThemeName = "print",
    rate: Rate = "Gbit/s",
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw with characters, here; write no file.")] = False,
    line_rate: LineRate = None,
    silence: Silence = None,
) -> None:
    """Draw every figure that the runs have data for, as PNG and SVG in each run's plots/; print their paths."""
    from netbench.figures import FIGURES, write_overlay, write_plots
    from netbench.metrics import RATES
    from netbench.page import THEMES

    theme, rate = _member("--theme", THEMES, theme).name, _member("--rate", RATES, rate).name
    asked = list(FIGURES) if figures is None else [name.strip() for name in figures.split(",")]
    names = [_member("--figures", FIGURES, name).name for name in asked]
    runs = _runs(paths, line_rate, silence)
    if terminal:
        from netbench.terminal import write_terminal

        write_terminal(runs, rate, sys.stdout)
    elif overlay:
        _print_paths(write_overlay(runs, overlay, rate, theme))
    else:
        _print_paths(write_plots(runs, rate, names, theme))
    runs.raise_for_damage()


def _print_paths(paths: Iterable[Path]) -> None:
    for path in paths:
        # A terminal obeys what may be in the name of a stranger's folder; a pipe has to get the name as it is.
        print(printable(str(path)) if sys.stdout.isatty() else path)


@app.command()
def report(
    run: OneRun,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="By default report.html in the run's folder.")
    ] = None,
    rate: Rate = "Gbit/s",
    line_rate: LineRate = None,
    silence: Silence = None,
) -> None:
    """Make one HTML page of a run, to read and to send: figures, tables, verdicts, environment; print its path."""
    from netbench.metrics import RATES
    from netbench.report import write_report

    reported = _run_at(run, line_rate, silence)
    print(write_report(reported, out, _member("--rate", RATES, rate).name))
    _raise_for_damage(reported)


def _run_at(path: Path, line_rate: str | None = None, silence: str | None = None) -> Run:
    """The one run at a path. Raises UsageError when there are several."""
    found = _runs([path], line_rate, silence)
    if (count := len(found) + len(found.unreadable)) > 1:
        names = ", ".join(str(run.folder.path) for run in found[:3])
        raise UsageError(f"{path}: holds {count} runs; name one of them: {names}{', ...' if count > 3 else ''}")
    return found[0]


@app.command()
def fit(run: OneRun, format: ListingName = "table", rate: Rate = "Gbit/s", theme: ThemeName = "print") -> None:
    """Fit latency and bandwidth, T = alpha + bytes/beta, to each series of a run; draw the fit into its plots/."""
    from netbench.fits import fit_rows, fit_texts, hindsight, write_fit
    from netbench.listing import LISTINGS
    from netbench.metrics import RATES
    from netbench.page import THEMES
    from netbench.predictions import Predictions

    listing, unit = _member("--format", LISTINGS, format), _member("--rate", RATES, rate)
    theme = _member("--theme", THEMES, theme).name
    fitted = _run_at(run)
    predictions = Predictions.of(fitted)
    listing.write(fit_rows(predictions, unit.name), lambda row: fit_texts(row, unit.name), sys.stdout)
    sys.stdout.flush()
    for line in hindsight(predictions):
        _say(line)
    for path in write_fit(fitted, predictions, theme):
        _say(f"figure: {path}")
    _raise_for_damage(fitted)


@app.command()
def predict(
    run: OneRun,
    mode: Annotated[str, typer.Option(help="What is to be run, as all_gather.")],
    world_size: Annotated[int, typer.Option(help="Between how many ranks.", min=1)],
    tensor: Annotated[str, typer.Option(metavar="BYTES", help="What each rank passes in, as 50MB.")],
    backend: Annotated[str | None, typer.Option(help="Over this alone; by default, each that the run has.")] = None,
    streams: Annotated[int | None, typer.Option(help="With so many alone, 0 for auto.")] = None,
    format: ListingName = "table",
) -> None:
    """Say how long an operation will take, with a 90 % interval, and whether the run holds anything like it."""
    from netbench.fits import prediction_row, prediction_texts
    from netbench.listing import LISTINGS
    from netbench.modes import MODES
    from netbench.predictions import Predictions

    listing, chosen = _member("--format", LISTINGS, format), _member("--mode", MODES, mode)
    try:
        tensor_bytes = parse_bytes(tensor)
    except ValueError as error:
        raise UsageError(f"--tensor: {error}") from None
    if world_size < chosen.min_world_size:
        raise UsageError(f"--world-size: {chosen.name} needs {chosen.min_world_size} ranks, not {world_size}")
    measured = _run_at(run)
    answers = Predictions.of(measured).predict(chosen.name, world_size, tensor_bytes, backend, streams)
    listing.write([prediction_row(answer) for answer in answers], prediction_texts, sys.stdout)
    _raise_for_damage(measured)


@app.command()
def show(
    paths: Paths = None,
    format: Annotated[str, typer.Option(help="table, csv, json, jsonl, prometheus, markdown or torchft.")] = "table",
    rate: Rate = "Gbit/s",
    line_rate: LineRate = None,
    silence: Silence = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="A rank a row: wire counters, round-trip times, clocks; table, csv or json.")
    ] = False,
) -> None:
    """Print the results of runs: a case a row, with median time, its interval, and bandwidths."""
    from netbench.listing import LISTINGS
    from netbench.metrics import RATES
    from netbench.tables import FORMATS, rank_rows, rank_texts

    if ranks:
        listing, shown = _member("--format", LISTINGS, format), _runs(paths)
        listing.write(rank_rows(shown), rank_texts, sys.stdout)
    else:
        chosen, unit = _member("--format", FORMATS, format), _member("--rate", RATES, rate)
        shown = _runs(paths, line_rate, silence)
        chosen.write(shown, unit.name, sys.stdout)
    sys.stdout.flush()
    shown.raise_for_damage()


@app.command()
def compare(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="The run to compare with, or its folder.")],
    others: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs to compare with it, each by itself.")],
    margin: Annotated[str, typer.Option(help="A change up to this does not matter, as 5%.")] = "5%",
    across: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Compare although these differ: lab, pause, interface.")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(metavar="VERDICT,...", help="Exit with 1 if a case is so: slower, inconclusive, ...")
    ] = None,
    format: Annotated[str, typer.Option(help="table, json, markdown or csv.")] = "table",
    plot: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Draw the ratios into this folder.")] = None,
    theme: ThemeName = "print",
    silence: Silence = None,
) -> None:
    """Say which cases of runs are slower or faster than in a baseline, and of which it cannot be told."""
    from netbench.compare.comparison import VERDICTS, compare
    from netbench.compare.differences import MEANINGS
    from netbench.compare.forest import write_forests
    from netbench.compare.report import FORMATS
    from netbench.page import THEMES

    chosen, look = _member("--format", FORMATS, format), _member("--theme", THEMES, theme)
    crossed, failing = _choices("--across", MEANINGS, across), _choices("--fail-on", VERDICTS, fail_on)
    share = _read("--margin", configuration.parse_share, margin)
    base = _run_at(baseline, silence=silence)
    comparisons = [compare(base, _run_at(path, silence=silence), share, crossed) for path in others]
    chosen.write(comparisons, sys.stdout)
    sys.stdout.flush()
    if plot is not None:
        for path in write_forests(comparisons, plot, look.name):
            _say(str(path))
    found = {verdict: sum(one.count(verdict) for one in comparisons) for verdict in failing}
    if any(found.values()):
        told = ", ".join(f"{count} {verdict}" for verdict, count in found.items() if count)
        raise NetbenchError(f"--fail-on: {told}")
    _raise_for_damage(base, *(one.other for one in comparisons))


@app.command()
def check(
    run: OneRun,
    require: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="As 'allreduce@64MiB,n=2 >= 8Gbit/s'; repeatable.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="CONFIG.toml", help="Take [check] require = [...] from here, too.")
    ] = None,
) -> None:
    """Hold a run against requirements: exit with 0 if all are met, 1 if one surely is not, 3 if it cannot be told."""
    from netbench.requirements import EXAMPLE, Outcome, Requirement, from_file, worst, write_findings
    from netbench.requirements import check as findings_of

    texts = list(require or ())
    requirements = [_read("--require", Requirement.parse, text) for text in texts]
    if config is not None:
        path = configuration.preset(config)
        requirements += [_read(f"{path}: check.require", Requirement.parse, text) for text in from_file(path)]
    if not requirements:
        raise UsageError(f"check: nothing is required; give --require {EXAMPLE}, or --config")
    checked = _run_at(run)
    findings = findings_of(checked, requirements)
    write_findings(findings, sys.stdout)
    outcome = worst(findings)
    if outcome is Outcome.VIOLATED:
        raise typer.Exit(Exit.CASE_FAILED)
    _raise_for_damage(checked)
    if outcome is Outcome.UNDECIDED:
        raise typer.Exit(Exit.UNDECIDED)


def _choices(option: str, known: Collection[str], text: str | None) -> list[str]:
    """The members of a list such as ``slower,inconclusive``."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"{option}: {name!r} is not known{did_you_mean(name, known)} (known: {', '.join(known)})")
    return names


def _member(option: str, registry: Registry[Thing], name: str) -> Thing:
    try:
        return registry[name]
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


@app.command()
def doctor(
    interface: Annotated[str | None, typer.Option(metavar="NAME", help="What the ranks are to be bound to.")] = None,
    subnet: Annotated[
        str | None, typer.Option(metavar="SUBNET", help="Or the interface with an address in here, as 10.1.0.0/16.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the ranks of several hosts are to meet.")
    ] = None,
    streams: Annotated[int | None, typer.Option(min=1, help="The most streams that are to be used.")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, help="The most ranks, all counted on this host.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are to be put.")] = Path("results"),
    format: ListingName = "table",
) -> None:
    """Look for what could spoil a sweep before anything is run; change nothing. Exit with 1 if there is a problem."""
    from netbench.doctor import count, examine, row, texts
    from netbench.examination import Asked, Level
    from netbench.listing import LISTINGS
    from netbench.machine import Machine

    usual = configuration.resolve(None, {})
    listing = _member("--format", LISTINGS, format)
    asked = Asked(
        interface=interface,
        subnet=subnet,
        endpoint=rdzv_endpoint,
        streams=streams or max(usual.streams),
        world_size=world_size or max(usual.world_sizes),
        out=out,
    )
    findings = examine(Machine(), asked)
    listing.write([row(name, finding) for name, finding in findings], texts, sys.stdout)
    sys.stdout.flush()
    counts = {level: count(findings, level) for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)}
    _say(", ".join(f"{number} {level}{'s' * (number != 1)}" for level, number in counts.items()))
    if counts[Level.PROBLEM]:
        raise typer.Exit(Exit.CASE_FAILED)


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Each becomes a run of its own.")],
    tool: Annotated[str | None, typer.Option(help="nccl-tests, iperf3, osu or gloo-471; else by its looks.")] = None,
    mode: Annotated[str | None, typer.Option(help="What was run, where the file does not say.")] = None,
    world_size: Annotated[int | None, typer.Option(help="How many ranks, where the file does not say.")] = None,
    backend: Annotated[str | None, typer.Option(help="Over what, if not as usual for the tool.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Of nccl-tests, take the in-place columns.")] = False,
    name: Annotated[str | None, typer.Option(help="A word in the run's id; the tool's name by default.")] = None,
    question: Annotated[str, typer.Option(help="What the run is to answer, a line.")] = "",
    out: Annotated[Path, typer.Option(help="Where runs are put.")] = Path("results"),
) -> None:
    """Make runs of other tools' output, to be shown and drawn beside ours; print their folders."""
    from netbench.importers import TOOLS, Given, import_file
    from netbench.modes import MODES

    chosen = None if tool is None else _member("--tool", TOOLS, tool).name
    given = Given(None if mode is None else _member("--mode", MODES, mode).name, world_size, backend, in_place)
    for path in files:
        print(import_file(path, chosen, given, out, name, question, _command_line()).path)


@app.command()
def runs(
    path: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("results"),
) -> None:
    """List the runs with date, status, cases and question."""
    from netbench.summary import find_runs
    from netbench.tables import write_runs

    write_runs(find_runs(path), sys.stdout)


@app.command("list")
def list_() -> None:
    """Name the modes, backends, metrics, figures, formats and presets, with a line each."""
    from netbench.catalogue import sections

    for title, entries in sections().items():
        print(f"{title}")
        width = max(len(name) for name in entries)
        for name, line in entries.items():
            print(f"  {name:{width}}  {line}")
        print()


labs = typer.Typer(help="Emulated hosts with a known link, to look inside.", no_args_is_help=True)
app.add_typer(labs, name="lab")


@labs.command("up")
def lab_up(spec: Annotated[str, typer.Argument(metavar="SPEC", help="As 4x200mbit or 2x400mbit,flow=40mbit.")]) -> None:
    """Make a lab that stays until it is taken down; print its name and its hosts."""
    from netbench.lab import LabSpec, up

    try:
        wanted = LabSpec.parse(spec)
    except ValueError as error:
        raise UsageError(str(error)) from None
    _print_lab(up(wanted))


@labs.command("down")
def lab_down(names: Annotated[list[str], typer.Argument(metavar="NAME...")]) -> None:
    """Take labs down, with every process that still runs in them."""
    from netbench.lab import down

    for name in names:
        down(name)


@labs.command("list")
def lab_list() -> None:
    """List the labs that are up, those of running sweeps included."""
    from netbench.lab import list_labs

    for entry in list_labs():
        _print_lab(entry)


@labs.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def lab_exec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lab.")],
    host: Annotated[str, typer.Argument(metavar="HOST", help="host0, host1, ... or switch.")],
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...")],
) -> None:
    """Run a command in a host of a lab; its exit code is ours."""
    from netbench.lab import exec_in

    raise typer.Exit(exec_in(name, host, command[1:] if command[0] == "--" else command))


def _print_lab(entry: LabEntry) -> None:
    until = f"netbench lab down {entry.name}" if entry.owner is None else f"process {entry.owner} ends"
    print(f"{entry.name}  {entry.spec}  until: {until}")
    for host in (entry.switch, *entry.hosts):
        print(f"  {host.name}  {host.address}  {host.interface}")


def known_options(command: str) -> set[str]:
    """The long options of a command, without their dashes, as TOML keys would be written."""
    from typer.main import get_command

    group: Any = get_command(app)
    return {
        name.removeprefix("--").replace("-", "_")
        for parameter in group.commands[command].params
        for name in parameter.opts
        if name.startswith("--")
    }
