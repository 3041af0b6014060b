"""The free queue, holders and content of blocks, by hand."""

from semtrace.engine.pool import BlockPool, Eviction


def test_blocks_are_taken_by_id_and_never_the_null_block():
    pool = BlockPool(5, caching=True)
    assert pool.free_order() == [1, 2, 3, 4]
    assert pool.take(3) == ([1, 2, 3], [])
    assert pool.free_order() == [4]
    assert [pool.holders[block] for block in range(5)] == [0, 1, 1, 1, 0]


def test_what_keeps_nothing_is_taken_first_and_content_in_order_of_release():
    pool = BlockPool(7, caching=True)
    first, _ = pool.take(3)
    pool.register(1, 10)
    pool.register(2, 20)
    pool.release(first)  # 3 is not full: to the front; 2 then 1 to the end
    assert pool.free_order() == [3, 4, 5, 6, 2, 1]
    assert pool.take(5) == ([3, 4, 5, 6, 2], [Eviction(2, 20)])
    assert pool.find(20) is None
    assert pool.find(10) == 1


def test_blocks_without_content_keep_the_order_of_the_walk():
    pool = BlockPool(6, caching=False)
    taken, _ = pool.take(3)
    pool.release(taken)
    assert pool.free_order() == [3, 2, 1, 4, 5]


def test_free_content_is_shared_until_it_is_taken():
    pool = BlockPool(4, caching=True)
    taken, _ = pool.take(2)
    pool.register(1, 10)
    pool.release(taken)
    assert pool.free_order() == [2, 3, 1]
    assert pool.idle([1]) == 1
    pool.share([1])
    assert pool.free_order() == [2, 3]
    pool.share([1])
    assert pool.holders[1] == 2
    assert pool.idle([1]) == 0
    pool.release([1])
    assert pool.free_order() == [2, 3]
    pool.release([1])
    assert pool.free_order() == [2, 3, 1]


def test_equal_content_is_not_merged_and_the_earliest_is_found():
    pool = BlockPool(4, caching=True)
    pool.take(3)
    for block in (2, 1, 3):
        pool.register(block, 10)
    assert pool.find(10) == 2
    pool.release([2])
    assert pool.take(1) == ([2], [Eviction(2, 10)])
    assert pool.find(10) == 1
    pool.register(2, 10)
    assert pool.find(10) == 1
