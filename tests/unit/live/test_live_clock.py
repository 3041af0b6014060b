"""The wall clock: it comes back at the time or when there is news, reads at least once, and stops at once."""

import gc
import threading
import time

from semtrace.live.clock import NAP_NS, NAPPING_NS, WallClock, sleep_ns
from support.raw_server import until


def test_waiting_ends_at_the_time_and_never_before():
    clock = WallClock(lambda wait: time.sleep(wait / 1e9))
    clock.begin()
    for target in (1, 2_000_000, 2_000_001, 3_000_000):
        clock.wait_until(target)
        assert clock.now_ns() >= target


def test_waiting_ends_before_the_time_when_there_is_something_to_report():
    news = iter([False, False, True])
    waits: list[int] = []

    def poll(wait):
        waits.append(wait)
        return next(news)

    clock = WallClock(poll)
    clock.wait_until(clock.now_ns() + 3_600_000_000_000)
    assert len(waits) == 3
    assert clock.now_ns() < 3_600_000_000_000


def test_a_sleep_ends_before_the_time_and_what_is_late_is_not_slept_for():
    waits: list[int] = []

    def poll(wait):
        waits.append(wait)
        return True

    clock = WallClock(poll)
    clock.wait_until(clock.now_ns() + 500_000_000)
    clock.wait_until(clock.now_ns() - 5)
    clock.wait_until(1 << 62)
    assert 0 < waits[0] < 500_000_000
    assert waits[1] == 0  # one look at the sockets, however late it is
    assert waits[2] == 1_000_000_000


def test_sleeps_are_short_when_something_is_due_soon():
    assert sleep_ns(0) == 0
    assert sleep_ns(NAP_NS - 1) == NAP_NS - 1
    assert sleep_ns(NAPPING_NS) == NAP_NS
    assert sleep_ns(1_000_000_000) == 1_000_000_000 - NAPPING_NS
    left, sleeps = 200_000_000, 0
    while left:
        left -= sleep_ns(left)
        sleeps += 1
    assert sleeps == 1 + NAPPING_NS // NAP_NS


def test_stop_ends_the_wait_and_all_later_ones():
    woken = threading.Event()
    clock = WallClock(lambda wait: not woken.wait(wait / 1e9) and False, woken.set)
    waiting = threading.Thread(target=clock.wait_until, args=(1 << 62,))
    waiting.start()
    clock.stop()
    waiting.join(20)
    assert not waiting.is_alive()
    clock.wait_until(1 << 62)
    assert clock.stopping
    clock.begin()
    assert clock.stopping  # a stop before time 0 counts


def test_the_origin_is_one_instant_on_both_clocks():
    clock = WallClock(lambda _: False)
    before = time.time_ns()
    clock.begin()
    after = time.time_ns()
    assert before <= clock.origin_unix_ns <= after
    assert clock.now_ns() <= time.monotonic_ns() - clock.origin_ns
    until(lambda: clock.now_ns() > 0)
    assert gc.isenabled()
