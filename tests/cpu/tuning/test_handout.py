"""Which shape a worker gets."""

from __future__ import annotations

from softgen.spec.problem import Problem
from softgen.tuning.handout import MOST_TRIES, Handout, Task

SMALL, MIDDLE, LARGE = (
    Task(number, Problem.of("softmax", "float32", cols), 64)
    for number, cols in enumerate((8, 512, 4096))
)


def test_the_largest_is_first() -> None:
    handout = Handout([SMALL, LARGE, MIDDLE])
    assert [handout.take("a", others=True) for _ in range(4)] == [LARGE, MIDDLE, SMALL, None]


def test_rows_count_as_columns_do() -> None:
    tall = Task(3, Problem.of("softmax", "float32", 8), 1 << 20)
    assert Handout([LARGE, tall]).take("a", others=False) == tall


def test_what_a_worker_lost_waits_for_another_where_there_is_one() -> None:
    handout = Handout([LARGE])
    handout.take("a", others=True)
    assert handout.give_back(LARGE, "a")
    assert handout.take("a", others=True) is None
    assert len(handout) == 1
    assert handout.take("b", others=True) == LARGE


def test_what_a_worker_lost_comes_first_and_it_goes_on_with_the_next() -> None:
    handout = Handout([SMALL, MIDDLE])
    handout.take("a", others=True)
    handout.give_back(MIDDLE, "a")
    assert handout.take("a", others=True) == SMALL
    assert handout.take("a", others=False) == MIDDLE


def test_the_last_try_is_not_given_back() -> None:
    handout = Handout([SMALL])
    for number in range(MOST_TRIES):
        handout.take("a", others=False)
        assert handout.give_back(SMALL, "a") is (number + 1 < MOST_TRIES)
    assert len(handout) == 0


def test_what_is_left_is_told_in_the_order_that_was_asked_for() -> None:
    handout = Handout([LARGE, SMALL, MIDDLE])
    assert handout.take_all() == [SMALL, MIDDLE, LARGE]
    assert len(handout) == 0
