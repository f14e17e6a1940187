"""Threads started inside ``batch_threads`` wait for a core; no other thread is touched."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest
import torch
from threads import World

from netbench.backends import gloo_group
from netbench.process_group import ParallelProcessGroup
from netbench.schedules import Senders
from netbench.scheduling import batch_threads
from netbench.streams import ParallelOptions


def tasks() -> set[int]:
    return {int(task) for task in os.listdir("/proc/self/task")}  # noqa: PTH208


def policies(threads: set[int]) -> list[int]:
    return sorted(os.sched_getscheduler(thread) for thread in threads)


def test_only_threads_started_inside_are_scheduled_as_batch() -> None:
    found = []

    def look() -> None:
        found.append(os.sched_getscheduler(0))

    def start() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    with batch_threads():
        start()
    start()
    with suppress(ZeroDivisionError), batch_threads():
        raise ZeroDivisionError
    start()
    assert found == [os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER]


def test_a_policy_that_was_chosen_is_kept() -> None:
    found = []

    def chosen() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with batch_threads():
            found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=chosen)
    thread.start()
    thread.join()
    assert found == [os.SCHED_IDLE]


@pytest.mark.parametrize("batch_io", [False, True])
def test_a_group_has_one_io_thread_for_a_device_and_only_that_may_be_batch(batch_io: bool) -> None:
    world = World(1)
    before = tasks()
    group = gloo_group(world.wiring(0, f"group{batch_io}"), "group", devices=2, batch_io=batch_io)
    started = policies(tasks() - before)
    assert started.count(os.SCHED_BATCH) == (2 if batch_io else 0)
    assert started.count(os.SCHED_OTHER) == len(started) - started.count(os.SCHED_BATCH) > 0
    group.allreduce([torch.ones(1)]).wait()


@pytest.mark.parametrize(("asked", "batch"), [("", 0), ("0", 0), ("1", 3)])
def test_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch, asked: str, batch: int) -> None:
    monkeypatch.setenv("NETBENCH_BATCH_IO", asked)
    monkeypatch.setenv("NETBENCH_STREAMS", "3")
    before = tasks()
    group = ParallelProcessGroup(options=ParallelOptions.from_environment())
    group.configure(World(1).wiring(0, f"asked{asked}").store, 0, 1)
    assert policies(tasks() - before).count(os.SCHED_BATCH) == batch
    group.shutdown()


def test_the_threads_of_a_stream_share_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("NETBENCH_PIN_IO", "1")
    monkeypatch.setenv("NETBENCH_STREAMS", "4")
    options = ParallelOptions.from_environment()
    assert [options.core(stream) for stream in range(4)] == [allowed[stream % len(allowed)] for stream in range(4)]
    before = tasks()
    group = ParallelProcessGroup(options=options)
    group.configure(World(1).wiring(0, "pinned").store, 0, 1)
    started = [sorted(os.sched_getaffinity(task)) for task in tasks() - before]
    pinned = [cores for cores in started if (len(cores) == 1 and cores != allowed) or len(allowed) == 1]
    assert {cores[0] for cores in pinned} == set(allowed[:4])
    assert len(pinned) >= 4
    assert sorted(os.sched_getaffinity(0)) == allowed
    group.shutdown()


def test_a_send_is_issued_on_the_core_of_its_stream() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    found: dict[int, set[int]] = {}
    senders = Senders(3, lambda stream: allowed[stream % len(allowed)])
    senders.run([lambda stream=stream: found.update({stream: os.sched_getaffinity(0)}) for stream in range(3)])  # type: ignore[misc]
    assert found == {stream: {allowed[stream % len(allowed)]} for stream in range(3)}
    senders.run([lambda: found.update({9: os.sched_getaffinity(0)})])
    assert found[9] == {allowed[0]}
    senders.close()
    assert ParallelOptions().core(0) is None
