"""The layout of rows that several devices hold together: its names, numbers and refusals."""

from __future__ import annotations

import pytest

from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.functions import all_exhibits
from softgen.problems.layouts import layout_from, layout_of
from softgen.problems.problem import Problem
from softgen.problems.shards import SHARDS, mailbox_bytes
from softgen.source.render import render
from softgen.strategies.variants import candidates, parse_name

ARCH = arch_named("sm_90")
NAME = "softmax_bf16_64128_sharded_cluster_p8_c64_b128_k8_m7_pk_pdl1"


def test_a_name_says_it_and_is_read_back() -> None:
    variant = parse_name(NAME)
    assert variant.problem.layout is SHARDS
    assert layout_of("sharded") is SHARDS
    assert variant.name == NAME
    assert variant.problem.as_json["layout"] == "sharded"
    assert variant.problem.bare.label == "softmax_bf16_64128"


def test_the_signature_and_the_header_follow_from_the_operands() -> None:
    variant = parse_name(NAME)
    assert variant.parameters[2:] == (
        *("const long long* mailboxes", "long long mailbox", "long long alarm", "int shard"),
        *("int shards", "long long room", "long long patience", "long long rows"),
    )
    text = render(variant).text
    for line in (
        "//   mailboxes: int64 [shards] in device memory, where each device's mailbox is\n",
        "//   shards: int32 number, from 1 to 8\n",
        "//   alarm: int64 number, the device address of 4 bytes of mapped, pinned host memory\n",
        "//   rows: int64 number (long long); the arguments come in this order\n",
        "//   sharded: every device launches as many rows as the others, in the same order\n",
    ):
        assert line in text
    assert "mailbox" not in render(parse_name(NAME.replace("_sharded", ""))).text


def test_only_strategies_whose_blocks_have_one_row_are_for_it() -> None:
    for cols in (1, 1000, 20000):
        problem = Problem.of("softmax", "float32", cols, layout="sharded")
        found = {variant.strategy.name for variant in candidates(problem, 4096, ARCH)}
        assert found <= {"block", "cluster"}
        assert found
    with pytest.raises(IllegalVariantError, match="in the layout sharded"):
        parse_name("softmax_f32_1000_sharded_safe_b256").check(ARCH)


def test_many_rows_hide_the_exchange_in_rows_that_an_sm_holds() -> None:
    """As many as any candidate has, packed; a setting of few rows is chosen as without shards."""
    for cols, rows_held in ((64128, 5 / 4), (25129, 6 / 2)):
        problem = Problem.of("softmax", "bfloat16", cols, layout="sharded")
        held = [
            variant.strategy.knobs["min_blocks"] / variant.strategy.knobs["cluster_size"]
            for variant in candidates(problem, 4096, ARCH, "cluster")
        ]
        assert held[0] == max(held) == rows_held
        many, few = (next(candidates(problem, rows, ARCH)).strategy.knobs for rows in (4096, 64))
        assert many["packed"]
        assert many["evict_first"]
        assert not few["packed"]


def test_the_size_of_a_mailbox() -> None:
    """A line, a counter a row in whole lines, and two buffers of 64 bytes a row and shard."""
    assert mailbox_bytes(2, 33) == 128 + 2 * 128 + 2 * 33 * 2 * 64
    with pytest.raises(InvalidValueError, match="room=0"):
        mailbox_bytes(2, 0)


def test_exhibits_of_a_part_of_a_vocabulary_have_that_part_of_its_columns() -> None:
    parts = {"half": 2, "a quarter": 4}
    shown = [
        (parts.get(each.where.partition(" of the Llama 3 vocabulary")[0], 1), each)
        for each in all_exhibits()
        if "Llama 3 vocabulary" in each.where
    ]
    assert {part for part, _ in shown} == {1, 2, 4}
    assert {part for part, each in shown if each.sharded} == {2}
    assert len({part * each.cols for part, each in shown}) == 1, shown


def test_what_is_refused() -> None:
    for function in ("softmax_backward", "cross_entropy_grad", "finish", "token_log_probs"):
        with pytest.raises(InvalidValueError, match=f"{function} has no kernel for sharded rows"):
            Problem.of(function, "float32", 1000, layout="sharded")
    with pytest.raises(InvalidValueError, match="sharded rows take no hooks, got scale"):
        Problem.of("softmax", "float32", 1000, hooks=["scale"], layout="sharded")
    with pytest.raises(InvalidValueError, match="give sharded alone"):
        layout_from(1, 2, sharded=True)
