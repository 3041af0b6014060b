"""The rules of the scheduler one by one, on cases small enough to follow by hand."""

from semtrace.engine.pool import Eviction
from semtrace.engine.scheduler import Request, Scheduler, Step
from semtrace.engine.settings import SchedulerSettings


def make(blocks=100, block_size=4, **settings):
    return Scheduler(SchedulerSettings(**settings), blocks, block_size)


def request(number, prompt, output, *, block_size=4, keys=None, **more):
    """A request whose content nobody shares, unless its keys say so."""
    own = range(1000 * number, 1000 * number + (prompt + output) // block_size)
    return Request(number, prompt, output, list(own) if keys is None else keys, **more)


def added(scheduler, *requests):
    for each in requests:
        scheduler.add(each)
    return requests


def seen(step: Step):
    return [(entry.request.id, entry.kind, entry.computed, entry.tokens) for entry in step.entries]


def run(scheduler, steps):
    return [ended.id for _ in range(steps) for ended in scheduler.update(scheduler.schedule())]


def test_one_request_from_prompt_to_end():
    scheduler = make()
    (only,) = added(scheduler, request(1, 6, 3))
    step = scheduler.schedule()
    (entry,) = step.entries
    assert seen(step) == [(1, "new", 0, 6)]
    assert (entry.blocks, entry.hits, entry.prefill, entry.yields) == ((1, 2), (), True, True)
    assert scheduler.update(step) == []
    assert (only.outputs, only.tokens, only.computed, only.blocks) == (1, 7, 6, [1, 2])
    step = scheduler.schedule()
    (entry,) = step.entries
    assert (entry.kind, entry.blocks, entry.prefill, entry.yields) == ("running", (), False, True)
    scheduler.update(step)
    assert scheduler.update(scheduler.schedule()) == [only]
    assert (only.state, only.computed, only.blocks) == ("ended", 8, [])
    assert scheduler.running == []
    assert scheduler.schedule() == Step()


def test_the_budget_goes_to_those_who_run_first():
    scheduler = make(max_num_batched_tokens=10)
    added(scheduler, request(1, 4, 5), request(2, 20, 5), request(3, 4, 5))
    step = scheduler.schedule()
    assert seen(step) == [(1, "new", 0, 4), (2, "new", 0, 6)]
    scheduler.update(step)
    step = scheduler.schedule()
    assert seen(step) == [(1, "running", 4, 1), (2, "running", 6, 9)]
    assert [entry.yields for entry in step.entries] == [True, False]
    scheduler.update(step)
    step = scheduler.schedule()
    assert seen(step) == [(1, "running", 5, 1), (2, "running", 15, 5), (3, "new", 0, 4)]
    assert [entry.prefill for entry in step.entries] == [False, True, True]


def test_a_last_chunk_of_one_token_is_prefill():
    scheduler = make(max_num_batched_tokens=4)
    added(scheduler, request(1, 5, 2))
    run(scheduler, 1)
    (entry,) = (step := scheduler.schedule()).entries
    assert (entry.tokens, entry.prefill) == (1, True)
    scheduler.update(step)
    (entry,) = scheduler.schedule().entries
    assert (entry.tokens, entry.prefill) == (1, False)


def test_without_chunks_a_prompt_waits_for_a_budget_that_holds_it_whole():
    scheduler = make(max_num_batched_tokens=8, chunked_prefill=False)
    added(scheduler, request(1, 5, 1), request(2, 5, 1), request(3, 1, 1))
    assert [run(scheduler, 1), run(scheduler, 1)] == [[1], [2, 3]]


def test_max_num_seqs():
    scheduler = make(max_num_seqs=2)
    added(scheduler, *(request(number, 4, 1) for number in range(5)))
    assert [run(scheduler, 1) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_long_prefill_threshold_spares_who_is_alone():
    settings = {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 8}
    alone = make(**settings)
    added(alone, request(1, 20, 2))
    assert seen(alone.schedule()) == [(1, "new", 0, 20)]
    always = make(**settings, threshold_always=True)
    added(always, request(1, 20, 2))
    assert seen(always.schedule()) == [(1, "new", 0, 8)]
    two = make(**settings)
    added(two, request(1, 20, 2), request(2, 10, 2))
    assert seen(two.schedule()) == [(1, "new", 0, 8), (2, "new", 0, 8)]


def test_a_hit_leaves_one_token_to_compute():
    scheduler = make()
    (first,) = added(scheduler, request(1, 8, 1))
    assert run(scheduler, 1) == [1]
    (again,) = added(scheduler, request(2, 8, 1, keys=first.keys))
    (entry,) = scheduler.schedule().entries
    assert (entry.computed, entry.tokens, entry.hits, entry.blocks) == (4, 4, (1,), (3,))
    assert (again.cached, again.blocks) == (4, [1, 3])


def test_blocks_of_this_step_are_found_in_this_step():
    scheduler = make()
    first, second = added(scheduler, request(1, 8, 1), request(2, 9, 1, keys=[1000, 1001]))
    assert seen(scheduler.schedule()) == [(1, "new", 0, 8), (2, "new", 8, 1)]
    assert second.blocks[:2] == first.blocks == [1, 2]


def test_without_caching_nothing_is_found():
    scheduler = make(prefix_caching=False)
    added(scheduler, request(1, 8, 1), request(2, 9, 1, keys=[1000, 1001]))
    assert seen(scheduler.schedule()) == [(1, "new", 0, 8), (2, "new", 0, 9)]


def test_what_is_taken_is_evicted():
    scheduler = make(blocks=4)
    added(scheduler, request(1, 8, 1), request(2, 12, 1))
    step = scheduler.schedule()
    assert [run_id for run_id, *_ in seen(step)] == [1]
    scheduler.update(step)
    step = scheduler.schedule()
    assert step.evicted == [Eviction(2, 1001), Eviction(1, 1000)]
    assert step.entries[0].blocks == (3, 2, 1)


def test_the_last_admitted_is_preempted_and_is_next():
    scheduler = make(blocks=5)
    _, second, third = added(scheduler, request(1, 8, 4), request(2, 8, 4), request(3, 4, 1))
    run(scheduler, 1)
    step = scheduler.schedule()
    assert step.preempted == [second]
    assert seen(step) == [(1, "running", 8, 1)]
    assert list(scheduler.waiting) == [second, third]
    assert (second.state, second.computed, second.outputs, second.blocks) == ("preempted", 0, 1, [])
    scheduler.update(step)
    assert run(scheduler, 2) == [1]
    (entry, *_) = scheduler.schedule().entries
    assert (entry.request, entry.kind, entry.computed, entry.tokens) == (second, "resumed", 4, 5)
    assert entry.prefill
    assert (second.cached, second.preemptions) == (0, 1)


def test_a_request_that_is_alone_preempts_itself():
    scheduler = make(blocks=3)
    (only,) = added(scheduler, request(1, 8, 2))
    run(scheduler, 1)
    step = scheduler.schedule()
    assert (step.preempted, step.entries) == ([only], [])
    assert list(scheduler.waiting) == [only]


def test_priority_preempts_who_is_served_last_and_takes_it_out_of_the_step():
    scheduler = make(blocks=6, order="priority")
    low = request(1, 7, 6, priority=2)
    added(scheduler, low)
    run(scheduler, 1)
    high = request(2, 8, 6, priority=0)
    added(scheduler, high)
    run(scheduler, 1)
    assert [each.id for each in scheduler.running] == [1, 2]
    step = scheduler.schedule()  # low takes the last block for its ninth token, then high finds none
    assert step.preempted == [low]
    assert seen(step) == [(2, "running", 8, 1)]
    assert step.entries[0].blocks == (5,)
    assert (low.computed, low.in_flight) == (0, 0)


def test_of_equal_priority_and_arrival_the_first_admitted_is_preempted():
    scheduler = make(blocks=5, order="priority")
    first, second = added(scheduler, request(1, 8, 4), request(2, 8, 4))
    run(scheduler, 1)
    assert scheduler.schedule().preempted == [first]
    assert scheduler.running == [second]


def test_requests_of_equal_priority_and_arrival_can_preempt_each_other_for_ever():
    """So does vLLM; whoever gives each request an arrival of its own is safe: somebody is never the victim then."""
    for arrivals, ended in (((0, 0), []), ((0, 1), [1, 2])):
        scheduler = make(
            blocks=5,
            block_size=16,
            order="priority",
            prefix_caching=False,
            long_prefill_token_threshold=9,
            threshold_always=True,
            reserve_full_isl=False,
        )
        first, second = (request(1, 40, 2, arrival=arrivals[0]), request(2, 40, 2, arrival=arrivals[1]))
        added(scheduler, first)
        run(scheduler, 2)
        added(scheduler, second)
        assert run(scheduler, 200) == ended
        assert (first.preemptions >= 40) == (second.preemptions >= 40) == (not ended)


def test_a_victim_taken_out_of_the_step_leaves_blocks_that_are_found_though_never_computed():
    """So does vLLM: keys are given when the step is scheduled and are not taken back."""
    scheduler = make(blocks=9, order="priority", long_prefill_token_threshold=8, threshold_always=True)
    (low,) = added(scheduler, request(1, 25, 1, priority=1))
    run(scheduler, 1)
    added(scheduler, request(2, 8, 2, priority=0))
    run(scheduler, 1)
    step = (
        scheduler.schedule()
    )  # low gets blocks 7 and 8 for its tokens 16 to 24, then loses all to who comes after it
    assert step.preempted == [low]
    assert step.entries[0].blocks == (8,)
    scheduler.update(step)
    (entry,) = scheduler.schedule().entries
    assert (entry.computed, entry.hits) == (20, (1, 2, 3, 4, 7))


def test_watermark_holds_while_others_run():
    scheduler = make(blocks=6, watermark_blocks=3)
    added(scheduler, request(1, 8, 2), request(2, 4, 1))
    step = scheduler.schedule()
    assert seen(step) == [(1, "new", 0, 8)]
    assert scheduler.update(step) == []
    step = scheduler.schedule()
    assert seen(step) == [(1, "running", 8, 1)]
    scheduler.update(step)
    assert seen(scheduler.schedule()) == [(2, "new", 0, 4)]


def test_the_whole_input_is_reserved():
    settings = {"blocks": 6, "max_num_batched_tokens": 8}
    reserved, chunks = make(**settings), make(**settings, reserve_full_isl=False)
    for scheduler in (reserved, chunks):
        added(scheduler, request(1, 4, 9), request(2, 20, 1))
    assert seen(reserved.schedule()) == [(1, "new", 0, 4)]
    assert seen(chunks.schedule()) == [(1, "new", 0, 4), (2, "new", 0, 4)]


def test_aborts():
    scheduler = make()
    first, second, third = added(scheduler, request(1, 8, 3), request(2, 8, 3), request(3, 8, 3))
    step = scheduler.schedule()
    scheduler.abort(second)
    scheduler.abort(second)
    assert (second.state, second.blocks) == ("ended", [])
    scheduler.update(step)
    assert (first.outputs, second.outputs, third.outputs) == (1, 0, 1)
    waiting = request(4, 8, 3)
    scheduler.add(waiting)
    scheduler.abort(waiting)
    assert list(scheduler.waiting) == []
    assert [each.id for each in scheduler.running] == [1, 3]


def test_two_in_flight():
    scheduler = make(asynchronous=True)
    (only,) = added(scheduler, request(1, 6, 3))
    first = scheduler.schedule()
    second = scheduler.schedule()
    assert seen(second) == [(1, "running", 6, 1)]
    assert (only.outputs, only.placeholders, only.in_flight) == (0, 2, 7)
    scheduler.update(first)
    third = scheduler.schedule()
    assert seen(third) == [(1, "running", 7, 1)]
    scheduler.update(second)
    assert scheduler.schedule().entries == []  # its last token is being computed
    assert scheduler.update(third) == [only]


def test_two_in_flight_a_block_is_found_when_its_last_token_is_known():
    scheduler = make(asynchronous=True)
    added(scheduler, request(1, 7, 9))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (
        scheduler.pool.find(1001) is None
    )  # the step in flight computes its last token, which the first step yields
    scheduler.update(first)
    assert scheduler.pool.find(1001) is None
    scheduler.update(second)
    assert scheduler.pool.find(1001) == 2


def test_two_in_flight_a_preempted_request_waits_for_its_token_and_is_overtaken():
    scheduler = make(blocks=6, asynchronous=True)
    first, second = added(scheduler, request(1, 8, 6), request(2, 8, 6))
    flying = scheduler.schedule()
    step = scheduler.schedule()  # the second finds no third block
    assert step.preempted == [second]
    assert (second.placeholders, second.in_flight) == (0, 8)
    third = request(3, 4, 1)
    scheduler.add(third)
    scheduler.abort(first)
    over = scheduler.schedule()
    assert seen(over) == [(3, "new", 0, 4)]
    assert list(scheduler.waiting) == [second]
    scheduler.update(flying)
    assert (second.outputs, second.in_flight) == (1, 0)
    assert seen(scheduler.schedule()) == [(2, "resumed", 8, 1)]
