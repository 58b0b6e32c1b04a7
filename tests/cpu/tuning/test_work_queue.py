"""Which shape a worker gets."""

from __future__ import annotations

from softgen.problems.problem import Problem
from softgen.tuning.work_queue import MOST_TRIES, Task, WorkQueue

SMALL, MIDDLE, LARGE = (
    Task(number, Problem.of("softmax", "float32", cols), 64)
    for number, cols in enumerate((8, 512, 4096))
)


def test_the_largest_is_first() -> None:
    work = WorkQueue([SMALL, LARGE, MIDDLE])
    assert [work.take("a", others=True) for _ in range(4)] == [LARGE, MIDDLE, SMALL, None]


def test_rows_count_as_columns_do() -> None:
    tall = Task(3, Problem.of("softmax", "float32", 8), 1 << 20)
    assert WorkQueue([LARGE, tall]).take("a", others=False) == tall


def test_what_a_worker_lost_waits_for_another_where_there_is_one() -> None:
    work = WorkQueue([LARGE])
    work.take("a", others=True)
    assert work.give_back(LARGE, "a")
    assert work.take("a", others=True) is None
    assert len(work) == 1
    assert work.take("b", others=True) == LARGE


def test_what_a_worker_lost_comes_first_and_it_goes_on_with_the_next() -> None:
    work = WorkQueue([SMALL, MIDDLE])
    work.take("a", others=True)
    work.give_back(MIDDLE, "a")
    assert work.take("a", others=True) == SMALL
    assert work.take("a", others=False) == MIDDLE


def test_the_last_try_is_not_given_back() -> None:
    work = WorkQueue([SMALL])
    for number in range(MOST_TRIES):
        work.take("a", others=False)
        assert work.give_back(SMALL, "a") is (number + 1 < MOST_TRIES)
    assert len(work) == 0


def test_what_is_left_is_told_in_the_order_that_was_asked_for() -> None:
    work = WorkQueue([LARGE, SMALL, MIDDLE])
    assert work.take_all() == [SMALL, MIDDLE, LARGE]
    assert len(work) == 0
