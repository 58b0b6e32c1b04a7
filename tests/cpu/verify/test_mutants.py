"""Breaks that verification has to see, each in one place of a kernel."""

from __future__ import annotations

import functools

import pytest

from softgen.source.render import render
from softgen.strategies.variants import parse_name
from softgen.verify.emulated import on_emulator
from softgen.verify.verdict import Verdict
from tests.helpers.emulator_helpers import broken

DROPOUT = "softmax_f32_33_dropout_safe_b256_pdl1"
LOSS = "cross_entropy_f32_33_safe_b256_pdl1"
GRADIENT = "cross_entropy_grad_rows_f32_33_safe_b256_pdl1"
BACKWARD = "cross_entropy_backward_f32_33_safe_b256_pdl1"
GIVEN = "token_log_probs_backward_f32_33_safe_b256_pdl1"
HIDDEN = "token_log_probs_f32_33_mask_safe_b256_pdl1"
SHARDED = "softmax_f32_100_sharded_block_p4_c4_g64_b128_m1_pdl1"
CUT = "softmax_f32_101_in77_bands_p4_w154_b160_c13_m4_pdl3"
RELAYED = "softmax_f32_20000_in40_spread_p4_w8_b512_c5_k66_n2_m1_pdl2"
WALKED = "softmax_f32_20000_in40_spread_p2_w20_b512_c1_k132_n2_m2_u4_pdl2"

NAN = "__int_as_float(0x7fc00000)"
TIMES = "up * (1 + z_loss * state.base * 2) + (state.base - state.base)"
NOT_STORED = "< 0; ++i) {\n      to"

# The kernel, what stands there, and what stands there instead.
MUTANTS = {
    "dropout keeps some at p = 1": (DROPOUT, "threshold < 65536", "true"),
    "p above 1 at z_loss 0": (GRADIENT, "z_loss == 0 &&", "z_loss != 0 &&"),
    "an infinite lse at z_loss 0": (BACKWARD, TIMES, "z_loss == 0 ? up : up"),
    "upstream is that of the first row": (GRADIENT, "number / every % count", "0"),
    "upstream comes again after two rows": (GRADIENT, "every % count", "every % 2"),
    "-100 is ignored, whatever is said": (LOSS, "id == ignore_index", "id == -100"),
    "an unknown id of upstream 0 is NaN": (GIVEN, "known || state.upstream == 0", "known"),
    "a hidden id is NaN": (HIDDEN, "values[i] = negative_infinity()", f"values[i] = {NAN}"),
    "any tag": (SHARDED, "messages[i] >> 32 == tag", "messages[i] >> 32 != 0"),
    "one buffer": (SHARDED, "tag % 2 * room", "0 * room"),
    "what is late is 0": (SHARDED, "word = 0xffffffff", "word = 0"),
    "nobody is named": (SHARDED, "store_count(reinterpret_cast<unsigned int*>(alarm)", "(void)(0"),
    "a cut pack is not loaded": (CUT, "values[i][kLast] = from", "values[i][kLast] += 0 * from"),
    "a cut pack is not stored": (CUT, "< kElements % kPackSize; ++i) {\n      to", NOT_STORED),
    "a relay of 32 blocks": (RELAYED, "kMine = (kGroupSize + 31) / 32;", "kMine = 1;"),
    "answers stay": (RELAYED, "of_row < behind; of_row += 32)", "of_row < first; of_row += 32)"),
    "a last tile is whole": (RELAYED, "if (first + of_row < rows) {", "if (true) {"),
    "a walk ends early": (WALKED, "for (; col < end; col += kStride)", "for (; false;)"),
    "a walk back ends early": (WALKED, "at >= col; at -= kStep", "at > col; at -= kStep"),
}


@functools.cache
def verdicts() -> dict[str, list[Verdict]]:
    """Return what became of each mutant, and of the kernels as they are; all in one unit."""
    whole = [
        render(parse_name(name)) for name in dict.fromkeys(name for name, *_ in MUTANTS.values())
    ]
    by_name = {source.name: source for source in whole}
    mutants = {how: broken(by_name[name], old, new) for how, (name, old, new) in MUTANTS.items()}
    found = on_emulator([*whole, *mutants.values()], seconds=120)
    return dict(zip([*by_name, *mutants], found, strict=True))


@pytest.mark.parametrize("how", MUTANTS)
def test_a_mutant_is_seen(how: str) -> None:
    name, *_ = MUTANTS[how]
    assert [each.objection for each in verdicts()[name] if each.objection] == []
    assert any(each.objection for each in verdicts()[how])
    assert all(each.compiled for each in verdicts()[how])
