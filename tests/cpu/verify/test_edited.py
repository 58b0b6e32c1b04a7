"""Files that somebody edited: mistakes are named by a line or by wrong elements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from softgen.cli import app
from softgen.source.compile_errors import origins
from softgen.source.edited import read_source
from softgen.source.render import Source, render
from softgen.strategies.variants import parse_name
from softgen.verify.emulated import on_emulator
from softgen.verify.verify import verify_source
from tests.helpers.emulator_helpers import objections

FILES = {
    "warp": "softmax_f32_100_warp_p4_c8_g16_r1_pad_b128_pdl3",
    "block": "softmax_bf16_1000_block_p8_c8_g128_b128_m12_pdl3",
    "online": "softmax_f32_1000_align1_online_p4_u1_b128_pdl1",
    "safe": "logsumexp_f32_1001_safe_b256_pdl1",
    "cluster": "softmax_bf16_8193_cluster_p8_c40_b128_k2_m9_pdl2",
    "shared": "softmax_f32_2048_shared_p4_b128_y2_s3_n132_m9_pdl1",
    "split": "softmax_f32_4096_split_p4_c4_b128_m1_rev",
    "columns": "softmax_f32_33_in8_columns_p4_w8_b128_c2_m9_k2_pdl3",
}


class Edit(NamedTuple):
    """What is replaced in a file, which time it stands there, and what verification says of it."""

    file: str
    old: str
    new: str
    said: str
    which: int = 0


RACE = r"race on shared memory: .* now at {name}\.cu:\d+, before at {name}\.cu:\d+"
WRONG = r"elements are off by more than|is not finite|wanted"

PLANTED = (
    # Barriers.
    Edit("block", "  __syncthreads();\n", "\n", RACE),
    Edit("safe", "  __syncthreads();  // the slots may be written again\n", "", RACE),
    Edit("online", "  __syncthreads();\n", "  __syncwarp();\n", RACE),
    Edit("cluster", "  cluster_wait();", "  // cluster_wait();", r"{name}\.cu:\d+"),
    Edit("columns", "  __syncthreads();\n#pragma unroll", "#pragma unroll", RACE),
    Edit("columns", "  mbarrier_wait(&barrier);\n", "", r"{name}\.cu:\d+"),
    Edit(
        "split",
        "  if (!reducing) chunk",
        "  if (threadIdx.x) __syncthreads();\n  if (!reducing) chunk",
        r"{name}\.cu:\d+",
    ),
    # Indices.
    Edit(
        "warp", "load_slice(x + row * kCols, lane,", "load_slice(x + row * kCols, lane ^ 1,", WRONG
    ),
    Edit(
        "block",
        "slots[thread / 32] = part;",
        "slots[thread / 32 + 1] = part;",
        r"outside of|never written|{name}\.cu:\d+",
    ),
    Edit("safe", "write_row(row, m,", "write_row(row + 1, m,", r"{name}\.cu:\d+|never written"),
    Edit(
        "split",
        "store_slice(values, thread, first_pack, y + row * kCols)",
        "store_slice(values, thread, first_pack, y + row * kCols + 4)",
        r"{name}\.cu:\d+",
    ),
    # Masks of lanes, and of rows.
    Edit("warp", "__shfl_xor_sync(0xffffffff", "__shfl_xor_sync(0x0000ffff", r"{name}\.cu:\d+"),
    Edit(
        "split",
        "__shfl_sync(0xffffffff, before, 0)",
        "__shfl_sync(0x7fffffff, before, 0)",
        r"{name}\.cu:\d+",
    ),
    Edit("block", "live, values);", "true, values);", r"{name}\.cu:\d+|elements of y"),
    # Alignment.
    Edit("online", "(kPackSize - element % kPackSize) % kPackSize", "0", r"misaligned|aligned"),
    Edit(
        "columns",
        "x + start + along * kInner;",
        "x + start + along * kInner + 1;",
        r"misaligned|aligned|{name}\.cu:\d+",
    ),
    # Bounds.
    Edit("safe", "col < kCols;", "col < kCols - 1;", WRONG),
    Edit("safe", "col < kCols;", "col <= kCols;", r"{name}\.cu:\d+|" + WRONG, 1),
    Edit(
        "split",
        "for (int i = thread; i < kChunks; i += kBlockSize)",
        "for (int i = thread; i < kChunks - 1; i += kBlockSize)",
        WRONG,
    ),
    Edit(
        "shared",
        "walk(row_x, Absorb{part});",
        "walk(row_x + 1, Absorb{part});",
        r"{name}\.cu:\d+|" + WRONG,
    ),
)

HARMLESS = (
    Edit("warp", "  const int lane =", "  // A comment.\n  const int lane =", ""),
    Edit(
        "block",
        "  const int thread = threadIdx.x;\n",
        "  const int thread = static_cast<int>(threadIdx.x);\n",
        "",
    ),
    Edit("online", "const MaxSum whole =", "const MaxSum  whole  =", ""),
    Edit(
        "safe",
        "  for (long long row = blockIdx.x;",
        "  __syncthreads();\n  for (long long row = blockIdx.x;",
        "",
    ),
    Edit("cluster", "whole = combine_lanes(whole);", "whole = combine_lanes(whole);  // all", ""),
    Edit(
        "shared",
        "const auto base = base_of(whole.m);",
        "const Compute largest = whole.m;\n    const auto base = base_of(largest);",
        "",
    ),
    Edit("split", "if (thread >= 32) return;", "if (thread / 32 > 0) return;", ""),
    Edit(
        "columns",
        "const int pack = thread % kThreadsAcross;",
        "const int pack = threadIdx.x % kThreadsAcross;",
        "",
    ),
)


def edited(edit: Edit, folder: Path, number: int) -> Source:
    """Write an edited file, and read it as the command does."""
    text = render(parse_name(FILES[edit.file])).text
    pieces = text.split(edit.old)
    assert len(pieces) > edit.which + 1, f"{edit.old!r} stands {len(pieces) - 1} times"
    at = edit.which + 1
    path = folder / f"edit{number}_{edit.file}.cu"
    path.write_text(edit.old.join(pieces[:at]) + edit.new + edit.old.join(pieces[at:]))
    return read_source(path)


def test_each_planted_mistake_is_named(tmp_path: Path) -> None:
    assert len(PLANTED) == 20
    assert {edit.file for edit in PLANTED} == {*FILES}
    sources = [edited(edit, tmp_path, i) for i, edit in enumerate(PLANTED)]
    unseen = []
    for edit, source, verdicts in zip(PLANTED, sources, on_emulator(sources, 10), strict=True):
        said = " | ".join(verdict.objection for verdict in verdicts if verdict.objection)
        wanted = edit.said.format(name=source.name)
        if not re.search(wanted, said):
            unseen.append((source.name, edit.old, said))
    assert unseen == []


def test_harmless_edits_pass(tmp_path: Path) -> None:
    assert {edit.file for edit in HARMLESS} == {*FILES}
    sources = [edited(edit, tmp_path, i) for i, edit in enumerate(HARMLESS)]
    assert objections(sources) == []


def emitted(folder: Path, *changes: tuple[str, str], file: str = "safe") -> Path:
    text = render(parse_name(FILES[file])).text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "mine.cu"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            [("(const X* x, Y* lse, long long rows)", "(const X* x, long long rows)")],
            r"mine\.cu:\d+: the kernel's parameters are .*keep them as they were emitted",
        ),
        (
            [("(const X* x, Y* lse, long long rows)", "(Y* lse, const X* x, long long rows)")],
            "parameters are",
        ),
        (
            [("logsumexp_f32_1001_safe_b256_pdl1(", "my_kernel(")],
            "'my_kernel', which is the name of no variant: give the one .* by --variant",
        ),
        ([('extern "C" __global__', "__global__")], "must have one kernel"),
        (
            [("kCols = 1001;", "kCols = 1000;")],
            r"mine\.cu:\d+: kCols is 1000, .* for 1001; emit the setting",
        ),
        ([("kBlockSize = 256;", "kBlockSize = 128;")], "kBlockSize is 128"),
    ],
)
def test_what_is_no_longer_that_kernel_is_refused(
    tmp_path: Path, changes: list[tuple[str, str]], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        read_source(emitted(tmp_path, *changes))


def test_a_renamed_kernel_is_read_with_its_variant(tmp_path: Path) -> None:
    path = emitted(tmp_path, ("logsumexp_f32_1001_safe_b256_pdl1(", "my_kernel("))
    source = read_source(path, FILES["safe"])
    assert source.symbol == "my_kernel"
    assert verify_source(source).failures == []
    with pytest.raises(ValueError, match="is the full name that"):
        read_source(path, "safe")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_source(tmp_path / "none.cu")
    (tmp_path / "bytes.cu").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read"):
        read_source(tmp_path / "bytes.cu")
    (tmp_path / "large.cu").write_text(" " * (2**20 + 1))
    with pytest.raises(ValueError, match="at most 2"):
        read_source(tmp_path / "large.cu")


def test_the_commands_name_the_line(tmp_path: Path) -> None:
    good = emitted(tmp_path)
    run = CliRunner().invoke
    for command in (["verify"], ["run", "--rows", "3"]):
        done = run(app, [*command, "--device", "cpu", "--source", str(good)])
        assert done.exit_code == 0, done.output
    bad = emitted(tmp_path, ("  __syncthreads();  // the slots may be written again\n", ""))
    done = run(app, ["verify", "--device", "cpu", "--source", str(bad)])
    assert done.exit_code == 4
    assert re.search(r"race on shared memory.*mine\.cu:\d+", done.output.replace("\n", " "))
    done = run(app, ["run", "--rows", "3", "--device", "cpu", "--source", str(bad)])
    assert done.exit_code != 0
    wrong = emitted(
        tmp_path, ("write_row(row, m, total, lse)", "write_row(row, m, 2 * total, lse)")
    )
    done = run(app, ["run", "--rows", "3", "--device", "cpu", "--source", str(wrong)])
    assert done.exit_code == 4
    assert "computes a wrong result" in done.output
    done = run(app, ["verify", "--all", "--source", str(good)])
    assert done.exit_code == 2


@pytest.mark.parametrize("words", [("verify",), ("run", "--rows", "4")])
def test_what_does_not_compile_is_named_by_the_file_that_was_edited(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    lines = render(parse_name(FILES["warp"])).text.splitlines()
    number = next(n for n, line in enumerate(lines) if "load_slice(x + row" in line)
    lines[number] += " slip;"
    path = tmp_path / "mine.cu"
    path.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--source", str(path)])
    assert done.exit_code == (4 if words == ("verify",) else 1), done.output
    assert f"the error is in the file that was edited: {path}:{number + 1}\n" in done.output
    assert "softgen show" not in done.output
    assert "template" not in done.output


def test_a_log_of_nvrtc_is_read_too(tmp_path: Path) -> None:
    source = replace(render(parse_name(FILES["warp"])), edited="mine/a.cu")
    log = 'a.cu(7): error: expected a ";"\n\na.cu(9): warning #177-D: unused\n'
    assert origins([source], log) == "the error is in the file that was edited: mine/a.cu:7"
