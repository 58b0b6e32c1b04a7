"""softgen emit, list and show."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from softgen.cli import group, output
from softgen.errors import MissingDependencyError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions import all_functions
from softgen.problems.problem import Problem
from softgen.source.emit import write
from softgen.source.gallery import gallery
from softgen.source.generate import generate
from softgen.strategies import winners
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import untimed
from softgen.strategies.variants import best_guess, candidates, parse_name
from softgen.strategies.winners import winner, winner_for_any_rows
from softgen.tuning import policy
from tests.helpers.cli_helpers import ROOT, cli, document, ok, refused

SAFE = "softmax_f32_1000_safe_b256_pdl1"
FULL_NAME = "softmax_f32_8_warp_p4_c4_g2_r1_b128"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder: `emit` writes into ./generated."""
    monkeypatch.chdir(tmp_path)


def cuda_files(folder: str) -> set[str]:
    return {path.stem for path in Path(folder).glob("*.cu")}


def test_the_gallery_goes_to_generated(tmp_path: Path) -> None:
    said = ok("emit").stderr.splitlines()
    assert said[-1] == f"they are in {tmp_path}/generated; --out names another folder"
    assert re.match(r"generated: \d+ files written, 0 unchanged, 0 removed$", said[-2])
    assert "made if it is not there. [default: generated, in the current folder]" in " ".join(
        re.sub("[│┃|]", " ", ok("emit", "--help").stdout).split()
    )
    texts = {path.stem: path.read_text() for path in Path("generated").glob("*.cu")}
    assert texts == {source.name: source.text for source in gallery()}
    assert ok("emit", "--check").stdout == ""


def test_the_page_says_how_many_kernels_the_gallery_has() -> None:
    (said,) = re.findall(r"the gallery, about (\d+) kernels", (ROOT / "docs/emit.md").read_text())
    assert len(gallery()) == pytest.approx(int(said), rel=0.1)


def test_emit_says_what_it_did() -> None:
    first = ok("emit", "--cols", 1000, "--variant", "safe", "--out", "out")
    assert f"wrote out/{SAFE}.cu" in first.stderr
    assert first.stderr.endswith("out: 2 files written, 0 unchanged, 0 removed\n")
    again = ok("emit", "--cols", 1000, "--variant", "safe", "--out", "out", "--json")
    assert document(again) == {
        "folder": "out",
        "written": [],
        "unchanged": [f"{SAFE}.cu", "manifest.json"],
        "removed": [],
        "edited": [],
    }


def test_one_kernel_is_added_to_the_folder() -> None:
    for cols in (1000, 1024):
        ok("emit", "--cols", cols, "--variant", "safe", "--out", "out")
    assert cuda_files("out") == {SAFE, "softmax_f32_1024_safe_b256_pdl1"}


def test_a_project_has_every_width_type_and_function() -> None:
    done = ok(
        *("emit", "--project", "made", "--name", "mine", "--cols", "64", "--cols", "100"),
        *("--dtype", "float32", "--dtype", "bfloat16", "--function", "softmax"),
        *("--function", "logsumexp", "--arch", "sm_80", "--bindings", "tvm-ffi"),
    )
    assert "cmake -S made -B build" in done.stderr
    header = Path("made/include/mine.h").read_text()
    for function in ("softmax", "logsumexp"):
        for dtype in ("f32", "bf16"):
            for cols in (64, 100):
                assert f"mine_{function}_{dtype}_{cols}(" in header
    manifest = json.loads(Path("made/manifest.json").read_text())
    assert manifest["architectures"] == ["sm_80"]
    assert {each["dispatcher"] for each in manifest["functions"]} == {
        "mine_softmax",
        "mine_logsumexp",
    }
    assert all((Path("made") / path).is_file() for path in manifest["files"])
    assert Path("made/bindings/tvm_ffi.cpp").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--project", "made"), "--project needs --cols"),
        (("--project", "made", "--cols", "64", "--all"), "--project takes none of"),
        (("--project", "made", "--cols", "64", "--rows", "5"), "few, middle and many rows"),
        (("--cols", "64", "--cols", "65"), "--cols may be repeated with --project only"),
        (
            ("--cols", "64", "--arch", "sm_80", "--arch", "sm_90"),
            "--arch may be repeated with --project only",
        ),
        (("--cols", "64", "--name", "mine"), "--name and --bindings need --project"),
        (("--project", "made", "--cols", "64", "--bindings", "jax"), "bindings are tvm-ffi"),
        (("--project", "made", "--cols", "64", "--name", "A B"), "lower-case letters"),
        (("--project", "made", "--cols", "64", "--name", ""), "lower-case letters"),
        *(
            (("--project", "made", "--variant", FULL_NAME, *beside), said)
            for beside, said in (
                (("--inner", "3"), "is for --inner 1, and --inner 3 was given"),
                (("--strided", "1"), "is for --strided 0, and --strided 1 was given"),
                (("--out-dtype", "float16"), "is for --out-dtype float32, and"),
                (("--hook", "causal"), "has no hooks, and --hook causal was given"),
            )
        ),
    ],
)
def test_options_of_a_project_that_do_not_fit(options: tuple[str, ...], said: str) -> None:
    done = cli("emit", *options)
    assert done.exit_code != 0
    assert said in " ".join((done.stdout + done.stderr).replace("│", " ").split())
    assert not Path("made").exists()


def test_check_finds_a_changed_byte_and_no_fault_in_the_users_own_file() -> None:
    words = ("emit", "--cols", 1000, "--variant", "safe", "--out", "out")
    ok(*words)
    path = Path("out") / f"{SAFE}.cu"
    path.write_text(path.read_text().replace("kBlockSize = 256", "kBlockSize = 128"))
    Path("out/mine.cu").write_text("int mine;\n")
    found = cli(*words, "--check")
    assert found.exit_code == group.FAILED
    assert "-constexpr int kBlockSize = 128;" in found.stdout
    assert "+constexpr int kBlockSize = 256;" in found.stdout
    assert "mine" not in found.stdout + found.stderr
    assert f"{SAFE}.cu (changed)" in found.stderr
    as_json = cli(*words, "--check", "--json")
    assert as_json.exit_code == group.FAILED
    differences = document(as_json)["differences"]
    assert [(d["file"], d["kind"]) for d in differences] == [(f"{SAFE}.cu", "changed")]
    assert document(as_json)["kind"] == "Drift"


@pytest.mark.parametrize("problem", [5, [], None, "softmax"])
def test_a_manifest_whose_problem_is_no_object_is_refused(problem: object) -> None:
    words = ("emit", "--all", "--cols", 64, "--dtype", "float32", "--variant", "safe")
    ok(*words, "--out", "out")
    path = Path("out/manifest.json")
    manifest = json.loads(path.read_text())
    next(iter(manifest["files"].values()))["problem"] = problem
    path.write_text(json.dumps(manifest))
    message = refused(group.USAGE, *words, "--out", "out")
    assert "manifest.json is not a manifest that softgen wrote (entry " in message
    assert "manifest.json (changed)" in cli(*words, "--out", "out", "--check").stderr


def test_dots_behind_a_link_are_refused() -> None:
    Path("elsewhere/inner").mkdir(parents=True)
    Path("link").symlink_to("elsewhere/inner")
    assert "is a symbolic link" in refused(
        group.USAGE, "emit", "--cols", 64, "--out", "link/../escaped"
    )
    assert [path.name for path in Path("elsewhere").iterdir()] == ["inner"]


def test_a_diff_is_no_command_to_the_terminal() -> None:
    words = ("emit", "--cols", 1000, "--variant", "safe", "--out", "out")
    ok(*words)
    path = Path("out") / f"{SAFE}.cu"
    path.write_text(path.read_text() + "int \x1b[2Jmine;\tint yours;\n")
    found = cli(*words, "--check")
    assert "-int \\x1b[2Jmine;\tint yours;\n" in found.stdout
    assert "\x1b" not in found.stdout
    difference = document(cli(*words, "--check", "--json"))["differences"][0]
    assert "\x1b[2Jmine" in difference["diff"]


def test_files_of_others_are_kept_without_a_word() -> None:
    """Nothing would overwrite or delete them, so there is nothing to warn of."""
    Path("out").mkdir()
    Path("out/mine.cu").write_text("int mine;\n")
    result = ok("emit", "--cols", 1000, "--variant", "safe", "--out", "out")
    assert "mine.cu" not in result.output
    assert Path("out/mine.cu").read_text() == "int mine;\n"


def test_an_edited_file_that_would_be_deleted_is_warned_of_and_kept() -> None:
    words = ("emit", "--all", "--cols", 1000, "--dtype", "float32", "--variant", "safe")
    ok(*words, "--out", "out")
    manifest = json.loads(Path("out/manifest.json").read_text())
    of_the_set = manifest["files"][f"{SAFE}.cu"]
    manifest["files"]["softmax_f32_1000_safe_b1024.cu"] = of_the_set  # as an earlier version wrote
    Path("out/manifest.json").write_text(json.dumps(manifest))
    Path("out/softmax_f32_1000_safe_b1024.cu").write_text("int mine;\n")
    result = ok(*words, "--out", "out")
    assert (
        "out/softmax_f32_1000_safe_b1024.cu is no longer produced, and was edited; left alone"
        in result.stderr
    )
    assert Path("out/softmax_f32_1000_safe_b1024.cu").read_text() == "int mine;\n"


def test_a_file_that_would_be_overwritten_is_refused() -> None:
    Path("out").mkdir()
    Path(f"out/{SAFE}.cu").write_text("int mine;\n")
    message = refused(group.USAGE, "emit", "--variant", SAFE, "--out", "out")
    assert f"out/{SAFE}.cu was edited, or is not softgen's; nothing was written" in message


def test_a_linked_folder_is_refused() -> None:
    Path("real").mkdir()
    Path("link").symlink_to("real")
    result = cli("emit", "--out", "link/sub")
    assert result.exit_code == group.USAGE
    assert "link is a symbolic link" in result.stderr
    assert list(Path("real").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named() -> None:
    Path("taken").write_text("a file")
    message = refused(group.FAILED, "emit", "--out", "taken/sub")
    assert message.startswith("cannot use taken/sub: Not a directory; name a file or folder")
    assert Path("taken").read_text() == "a file"


def test_no_kernel_at_all_is_an_error() -> None:
    words = ("emit", "--all", "--cols", 100, "--dtype", "float32", "--variant", "cluster")
    message = refused(group.USAGE, *words, "--out", "out")
    assert message.startswith("no setting of cluster is legal for 100 columns on sm_90, so nothing")
    assert not Path("out").exists()


def test_a_strategy_that_the_architecture_lacks_says_why() -> None:
    words = ("emit", "--cols", 50257, "--arch", "sm_75", "--variant", "cluster", "--out", "out")
    message = refused(group.USAGE, *words)
    assert "thread block clusters need sm_90, sm_75 has none" in message
    assert "`softgen list --dtype float32 --cols 50257 --arch sm_75` shows what has" in message


def test_all_writes_every_candidate_of_every_strategy_dtype_and_function() -> None:
    """One function with every dtype, and every function with one: both take 20 s."""
    for options, functions, dtypes in (
        (("--function", "softmax"), ["softmax"], list(DType)),
        (("--dtype", "bfloat16"), list(all_functions()), [DType.BFLOAT16]),
    ):
        ok("emit", "--all", "--cols", 1000, *options, "--out", options[1])
        expected = {
            variant.name
            for function in functions
            for dtype in dtypes
            for variant in candidates(Problem.of(function, dtype, 1000), 4096, arch_named("sm_90"))
        }
        assert cuda_files(options[1]) == expected
        strategies = {parse_name(name).strategy.name for name in expected}
        assert {"warp", "block", "online", "safe"} <= strategies
        assert strategies < {kind.name for kind in all_strategies() if kind.tuned}
        assert set(json.loads(Path(options[1], "manifest.json").read_text())["files"]) == {
            f"{name}.cu" for name in expected
        }


def add_stale(name: str, folder: str) -> None:
    """Add a file that an earlier run wrote for what the first of a manifest is for."""
    path = Path(folder) / "manifest.json"
    manifest = json.loads(path.read_text())
    text = "int earlier;\n"
    (Path(folder) / f"{name}.cu").write_text(text)
    entry = next(iter(manifest["files"].values()))
    manifest["files"][f"{name}.cu"] = entry | {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("whole", [(), ("--all", "--cols", 64, "--variant", "safe")])
def test_a_whole_set_replaces_what_an_earlier_run_of_it_wrote(whole: tuple[object, ...]) -> None:
    ok("emit", *whole, "--out", "out")
    add_stale("softmax_f32_64_old_b1", "out")
    ok("emit", "--cols", 1000, "--variant", "safe", "--out", "out")
    ok("emit", "--all", "--cols", 100, "--variant", "safe", "--out", "out")
    report = document(ok("emit", *whole, "--out", "out", "--json"))
    assert report["removed"] == ["softmax_f32_64_old_b1.cu"]
    assert cuda_files("out") >= {SAFE, "softmax_f16_100_safe_b256_pdl1"}
    assert ok("emit", *whole, "--check", "--out", "out").stdout == ""


def test_a_kernel_of_two_sets_stays_while_one_has_it() -> None:
    shown = next(source.variant for source in gallery())
    ok("emit", "--variant", shown.name, "--out", "out")
    ok("emit", "--out", "out")
    path = Path("out/manifest.json")
    assert json.loads(path.read_text())["files"][f"{shown.name}.cu"]["sets"] == [
        "gallery",
        "one kernel",
    ]
    source = generate("softmax", "float32", 8)
    write(Path("out"), [source])  # a gallery of another version
    assert cuda_files("out") == {shown.name, source.name}


def test_all_leaves_other_requests_alone() -> None:
    words = ("emit", "--all", "--cols", 1000, "--variant", "safe", "--out", "out")
    for dtype in ("float32", "float16"):
        ok(*words, "--dtype", dtype, "--algorithm", "softmax")
    assert cuda_files("out") == {SAFE, "softmax_f16_1000_safe_b256_pdl1"}


def test_a_manifest_of_an_earlier_version_is_the_gallerys() -> None:
    ok("emit", "--cols", 1000, "--variant", "safe", "--out", "out")
    path = Path("out/manifest.json")
    manifest = json.loads(path.read_text())
    assert manifest["files"][f"{SAFE}.cu"].pop("sets") == ["one kernel"]
    path.write_text(json.dumps(manifest))
    ok("emit", "--cols", 64, "--variant", "safe", "--out", "out")
    assert document(ok("emit", "--out", "out", "--json"))["removed"] == [f"{SAFE}.cu"]


def test_stdout_is_the_source_and_nothing_else() -> None:
    words = ("emit", "--cols", 1000, "--dtype", "bfloat16", "--variant", "online", "--stdout")
    expected = generate("softmax", "bfloat16", 1000, variant="online")
    assert ok(*words).stdout == expected.text
    assert document(ok(*words, "--json")) == [{"name": expected.name, "source": expected.text}]
    assert list(Path().iterdir()) == []


def test_list_json_is_every_candidate_in_order() -> None:
    listed = document(ok("list", "--cols", 1000, "--dtype", "float16", "--rows", 64, "--json"))
    problem = Problem.of("softmax", "float16", 1000)
    expected = list(candidates(problem, 64, arch_named("sm_90")))
    assert [line["name"] for line in listed] == [variant.name for variant in expected]
    assert listed[-1] == {
        "name": "softmax_f16_1000_safe_b256_pdl1",
        "strategy": "safe",
        "parameters": {"block_size": 256, "pdl": 1},
        "threads": 256,
        "shared_bytes": 32,
        "multiprocessors": 0,
        "tuned_on": "",
    }


def test_list_for_people_shows_names_and_parameters() -> None:
    result = ok("list", "--cols", 1000, "--variant", "safe")
    assert result.stdout.split() == [
        *("variant", "parameters", "threads", "shared", "bytes"),
        *(SAFE, "block_size=256", "pdl=1", "256", "32"),
    ]
    assert "softmax of float32 with 1000 columns" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--cols", 1000),
        ("--cols", 128256, "--dtype", "bfloat16", "--variant", "cooperative"),  # the longest names
    ],
)
def test_a_narrow_list_has_the_rest_in_a_second_line(
    words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, *rows = [re.split(r" {2,}", line.strip()) for line in _listed(words)]
    monkeypatch.setattr(output, "PIPE_WIDTH", 80)
    first, *lines = _listed(words)
    assert len(lines) == 2 * len(rows)
    assert max(map(len, (first, *lines[::2]))) <= 80
    kept = first.split()
    for row, line, below in zip(rows, lines[::2], lines[1::2], strict=True):
        assert line.startswith(row[0])
        assert below.startswith("    parameters ")
        for head, cell in zip(heads, row, strict=True):
            assert cell in line if head.split()[0] in kept else f"{head} {cell}" in below


def _listed(words: tuple[object, ...]) -> list[str]:
    return ok("list", *words).stdout.splitlines()


def test_list_narrows_to_a_strategy_oneflow_or_a_name() -> None:
    for choice, name in (
        ("safe", SAFE),
        ("oneflow", "softmax_f32_1000_oneflowwarp_p2_c32_g32_r1_pad_b128_n67584"),
        ("softmax_f32_1000_safe_b512", "softmax_f32_1000_safe_b512"),
    ):
        listed = document(ok("list", "--cols", 1000, "--variant", choice, "--json"))
        assert [line["name"] for line in listed] == [name]


def test_list_of_nothing_is_empty() -> None:
    words = ("list", "--cols", 100_000, "--variant", "warp")
    assert document(ok(*words, "--json")) == []
    assert (
        "strategy 'warp' has no setting worth running for softmax_f32_100000" in ok(*words).stderr
    )
    hooked = ("--function", "log_softmax", "--hook", "scale", "--out-dtype", "float16")
    assert (
        "`softgen list --function log_softmax --dtype float32 --cols 100000 --out-dtype float16 "
        "--hook scale --arch sm_90` shows what has"
    ) in ok(*words, *hooked).stderr


WIDE = ("--cols", 2097152, "--dtype", "float32")


def test_a_cooperative_kernel_says_how_many_sms_it_needs() -> None:
    for options, sms, held in (((), 132, 4), (("--sms", 78), 78, 8)):
        report = document(ok("emit", *WIDE, *options, "--out", f"for{sms}", "--json"))
        (file,) = (name for name in report["written"] if name.endswith(".cu"))
        assert f"_cooperative_p4_c{held}_b640_k{sms}_n1_" in file
        head = Path(f"for{sms}", file).read_text().partition("#include")[0]
        assert f"a multiple of {sms} blocks, at most rows * {sms}, all resident;" in head
        assert f"\n//   SMs:     at least {sms} at once (softgen emit --sms" in head
        entry = json.loads(Path(f"for{sms}/manifest.json").read_text())["files"][file]
        assert entry["launch"]["multiprocessors"] == entry["launch"]["most_blocks"] == sms
        assert entry["oldest_arch"] == "sm_90"
        assert ok("emit", *WIDE, *options, "--out", f"for{sms}", "--check").stdout == ""


def test_sms_choose_groups() -> None:
    words = ("--cols", 128256, "--dtype", "bfloat16", "--variant", "cooperative", "--json")
    for sms, groups in ((132, 33), (78, 19)):
        first = document(ok("list", *words, "--sms", sms))[0]
        assert (first["parameters"]["group_size"], first["parameters"]["groups"]) == (4, groups)
        assert first["multiprocessors"] == 4 * groups


def test_a_grid_that_strides_says_what_it_is_sized_for() -> None:
    words = ("--cols", 8192, "--variant", "shared")
    listed = document(ok("list", *words, "--sms", 78, "--json"))
    ring = next(line for line in listed if line["parameters"]["resident"] > 1)
    assert ring["multiprocessors"] == ring["parameters"]["multiprocessors"] == 78
    shown = document(ok("show", ring["name"], "--sms", 40, "--json"))  # it runs there too
    assert "\n//   SMs:     any, sized for 78 (softgen emit --sms" in shown["source"]
    assert f"at most {78 * ring['parameters']['resident']}: blocks stride" in shown["source"]
    for line in listed:
        assert (line["multiprocessors"] > 0) == (line["parameters"]["stages"] > 1)


def test_list_has_a_column_of_sms_where_any_kernel_is_sized_for_some() -> None:
    result = ok("list", *WIDE, "--sms", 78)
    heading, first, *_, last = result.stdout.splitlines()
    assert heading.split()[-1] == "SMs"
    assert first.rstrip().endswith("at least 78 at once")
    assert last.rstrip().endswith("any")
    assert "4096 rows, sm_90 with 78 SMs: " in result.stderr
    plain = ok("list", "--cols", 1000, "--sms", 132)
    assert "SMs" not in plain.stdout
    assert "4096 rows, sm_90: " in plain.stderr


def test_too_few_sms_say_so() -> None:
    name = "softmax_bf16_128256_cooperative_p8_c16_b640_k4_n33_s14_f2_l2"
    for words in (
        ("show", name, "--sms", 78),
        ("list", "--cols", 128256, "--dtype", "bfloat16", "--variant", name, "--sms", 78),
        ("emit", "--cols", 128256, "--dtype", "bfloat16", "--variant", name, "--sms", 78),
    ):
        message = refused(group.USAGE, *words)
        assert message.endswith(": sm_90 with 78 SMs holds 78 such blocks at once")
    unsuited = ("--cols", 1000, "--variant", "cluster", "--sms", 78)
    message = refused(group.USAGE, "emit", *unsuited, "--out", "out")
    assert "on sm_90 with 78 SMs" in message
    assert "--cols 1000 --arch sm_90 --sms 78` shows what has" in message


@pytest.mark.parametrize("every", [(), ("--all", "--variant", "warp", "--function", "softmax")])
def test_emitted_headers_name_the_architecture(every: tuple[str, ...], tmp_path: Path) -> None:
    words = ("emit", "--cols", 1000, *every, "--out", tmp_path / "kernels", "--arch")
    for arch in ("sm_80", "sm_120"):
        ok(*words, arch)
        texts = [path.read_text() for path in (tmp_path / "kernels").glob("*.cu")]
        assert any(f" -arch={arch} -c" in text for text in texts)
        ok(*words, arch, "--check")


def test_show_prints_the_source_on_stdout_and_resources_on_stderr() -> None:
    result = ok("show", SAFE)
    assert result.stdout == generate("softmax", "float32", 1000, variant="safe").text
    assert "registers" in result.stderr


def test_show_takes_a_problem_for_its_best_guess() -> None:
    words = ("show", "--cols", 4096, "--dtype", "bfloat16", "--out-dtype", "float32")
    source = generate("softmax", "bfloat16", 4096, out_dtype="float32")
    shown = document(ok(*words, "--json"))
    assert (shown["name"], shown["source"]) == (source.name, source.text)
    assert shown["options"] == ["--std=c++17", "-ftz=true"]
    assert shown["launch"]["block_size"] == shown["threads"]


def test_show_tells_what_the_compiler_made_of_it() -> None:
    plain = SAFE.removesuffix("_pdl1")
    shown = document(ok("show", plain, "--arch", "sm_80", "--json"))
    resources = shown["resources"]
    assert shown["arch"] == "sm_80"
    assert shown["missing"] is None
    assert 8 <= resources["registers"] <= 64
    assert resources["spill_bytes"] == 0
    assert resources["shared_bytes"] == 32
    assert resources["occupancy"] == resources["blocks_per_multiprocessor"] * 256 / 2048


def test_show_takes_the_path_of_an_emitted_file() -> None:
    assert ok("show", f"generated/{SAFE}.cu").stdout == ok("show", SAFE).stdout


def test_show_without_a_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*arguments: object) -> None:
        raise MissingDependencyError("NVRTC cannot be loaded; install it with pip")

    monkeypatch.setattr("softgen.devices.gpu.compile.compile_offline", absent)
    result = ok("show", SAFE)
    assert result.stdout.startswith(f"// {SAFE}\n")
    assert "install it with pip" in result.stderr
    assert document(ok("show", SAFE, "--json"))["resources"] is None


def test_batch_invariant_kernels_are_emitted_listed_and_shown(tmp_path: Path) -> None:
    ok("emit", "--cols", 1001, "--batch-invariant", "--out", tmp_path)
    (kernel,) = tmp_path.glob("*.cu")
    assert kernel.stem.startswith("softmax_f32_1001_fixed_warp_")
    assert "summed in one order wherever it lies" in kernel.read_text()
    assert ok("show", kernel.stem).stdout == kernel.read_text()
    shown = ok("show", "--cols", 1001, "--batch-invariant").stdout
    assert shown == kernel.read_text()
    listed = document(ok("list", "--cols", 1001, "--batch-invariant", "--json"))
    assert listed[0]["name"] == kernel.stem
    assert all("_fixed_" in row["name"] for row in listed)


def test_whole_packs_are_batch_invariant_as_they_are(tmp_path: Path) -> None:
    ok("emit", "--cols", 1000, "--out", tmp_path)
    again = ok("emit", "--cols", 1000, "--batch-invariant", "--out", tmp_path)
    assert "0 files written" in again.stderr


def test_the_sets_of_both_kinds_leave_each_other_alone(tmp_path: Path) -> None:
    one = ("--dtype", "float32", "--variant", "warp", "--function", "softmax")
    words = ("emit", "--all", "--cols", 33, *one)
    ok(*words, "--out", tmp_path)
    usual = set(tmp_path.glob("*.cu"))
    ok(*words, "--batch-invariant", "--out", tmp_path)
    fixed = set(tmp_path.glob("*.cu")) - usual
    assert fixed
    assert all("_33_fixed_warp_" in path.name for path in fixed)
    ok(*words, "--out", tmp_path)
    assert set(tmp_path.glob("*.cu")) == usual | fixed


def test_a_fixed_name_needs_no_option(tmp_path: Path) -> None:
    name = "softmax_f32_1001_fixed_warp_p4_c32_g32_r1_pad_b128"
    for words in ((), ("--batch-invariant",), ("--cols", 1001, "--dtype", "float32")):
        ok("emit", "--variant", name, *words, "--out", tmp_path)
        assert [path.stem for path in tmp_path.glob("*.cu")] == [name]
    assert [line["name"] for line in document(ok("list", "--variant", name, "--json"))] == [name]


def test_a_name_says_the_problem(tmp_path: Path) -> None:
    name = "log_softmax_bf16_to_f32_1001_safe_b128"
    source = generate("log_softmax", "bfloat16", 1001, out_dtype="float32", variant="safe_b128")
    assert source.name == name
    for option in ("--variant", None):
        shown = ok("show", *([option] if option else []), name)
        assert shown.stdout == source.text
    assert document(ok("emit", "--variant", name, "--stdout", "--json")) == [
        {"name": name, "source": source.text}
    ]
    ok("emit", "--variant", name, "--out", tmp_path)
    assert (tmp_path / f"{name}.cu").read_text() == source.text


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--cols", 1001, "1000"),
        ("--dtype", "float16", "float32"),
        ("--function", "log_softmax", "softmax"),
        ("--out-dtype", "float64", "float32"),
        ("--alignment", 1, "4"),
    ],
)
@pytest.mark.parametrize("command", ["list", "emit", "show"])
def test_an_option_that_differs_from_the_name_is_refused(
    command: str, option: str, value: object, said: str
) -> None:
    message = refused(group.USAGE, command, "--variant", SAFE, option, value)
    assert message == (
        f"{SAFE} is for {option} {said}, and {option} {value} was given; leave {option} out, or "
        "give the setting alone: --variant safe_b256_pdl1"
    )


def test_a_name_whose_order_is_not_fixed_is_not_batch_invariant() -> None:
    name = "softmax_f32_1001_safe_b256_pdl1"
    message = refused(group.USAGE, "show", name, "--batch-invariant")
    assert "and --batch-invariant was given; leave it out, or choose a name with `fixed`" in message
    ok("show", SAFE, "--batch-invariant")  # whole packs have one order anyway


def test_a_setting_is_for_any_width() -> None:
    for cols in (8, 1000):
        listed = document(ok("list", "--cols", cols, "--variant", "safe_b128", "--json"))
        assert [line["name"] for line in listed] == [f"softmax_f32_{cols}_safe_b128"]


# What softgen ships


TUNED = "softmax_bf16_4096_block_p8_c16_g256_b256_m5_pdl2"
BF16 = ("--dtype", "bfloat16", "--cols", 4096, "--rows", 8192)


def test_the_shipped_winner_is_emitted_listed_and_shown_where_there_is_one() -> None:
    H200 = arch_named("sm_90")
    problem = Problem.of("softmax", "bfloat16", 4096)
    shipped = winner(problem, 8192, H200)
    assert shipped is not None
    assert shipped.name == TUNED != best_guess(problem, 8192, H200).name
    told = f"{TUNED}: tuned on NVIDIA H200 for 8192 rows\n"
    assert told in ok("emit", *BF16, "--out", "out").stderr
    assert cuda_files("out") == {TUNED}
    assert document(ok("emit", *BF16, "--out", "out", "--json"))["tuned_on"] == "NVIDIA H200"
    assert told in ok("show", *BF16).stderr
    assert told in ok("list", *BF16).stderr
    listed = document(ok("list", *BF16, "--json"))
    assert (listed[0]["name"], listed[0]["tuned_on"]) == (TUNED, "NVIDIA H200")
    assert {line["tuned_on"] for line in listed[1:]} == {""}
    names = [line["name"] for line in listed]
    assert len(names) == len(set(names))
    assert generate("softmax", "bfloat16", 4096, rows=8192).name == TUNED


def test_a_strategys_name_is_its_best_guess_and_tells_of_the_shipped_winner() -> None:
    listed = document(ok("list", *BF16, "--variant", "block", "--json"))
    assert (listed[0]["name"], listed[0]["tuned_on"]) == (TUNED, "NVIDIA H200")
    assert {line["tuned_on"] for line in listed[1:]} == {""}
    assert f"{TUNED}: tuned on NVIDIA H200 for 8192 rows\n" in (
        ok("list", *BF16, "--variant", "block").stderr
    )
    said = ok("emit", *BF16, "--variant", "block", "--out", "out").stderr
    assert cuda_files("out") == {listed[1]["name"]}
    assert f"--variant {TUNED} is the winner, tuned on NVIDIA H200 for 8192 rows\n" in said
    for other in ("cluster", TUNED, TUNED.removeprefix("softmax_bf16_4096_")):
        assert "is the winner" not in ok("emit", *BF16, "--variant", other, "--out", "out").stderr
    assert {
        line["tuned_on"] for line in document(ok("list", *BF16, "--variant", "cluster", "--json"))
    } == {""}


@pytest.mark.parametrize("options", [("--arch", "sm_80"), ("--sms", 78), ("--rows", 4096)])
def test_elsewhere_it_is_from_the_nearest_table(options: tuple[object, ...]) -> None:
    words = ("show", *BF16, *options)
    shown = document(ok(*words, "--json"))
    name = TUNED.replace("_pdl2", "") if "sm_80" in options else TUNED
    assert (shown["name"], shown["tuned_on"]) == (name, "NVIDIA H200")
    said = f"{name}: from the table of NVIDIA H200, 132 SMs, tuned for 8192 x 4096\n"
    assert said in ok(*words).stderr


def test_far_from_the_table_it_is_the_best_guess() -> None:
    words = ("show", *BF16, "--rows", 64)
    shown = document(ok(*words, "--json"))
    assert (shown["name"] == TUNED, shown["tuned_on"]) == (False, "")
    assert f"{shown['name']}: best guess for 64 rows\n" in ok(*words).stderr


def test_the_choice_of_batch_invariant_is_for_any_rows() -> None:
    wide = Problem.of("softmax", "float32", 2097152)
    shipped = winner_for_any_rows(wide, arch_named("sm_90"))
    assert shipped is not None
    for rows in (1, 4096):
        words = ("--cols", 2097152, "--rows", rows, "--batch-invariant")
        result = ok("show", *words)
        assert f"{shipped.name}: tuned on NVIDIA H200 for any number of rows\n" in result.stderr


def test_what_is_emitted_is_what_a_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    H200 = arch_named("sm_90")
    monkeypatch.setattr(policy, "arch_of", lambda device: H200)
    monkeypatch.setattr(policy, "environment", lambda device: {"device": "NVIDIA H200"})
    names = winners._winners("NVIDIA H200")
    assert len(names) >= 50
    for name, rows, _ in names:
        problem = parse_name(name).problem
        called = policy.choose(problem, rows, 0, "cached").variant
        emitted = untimed(problem, rows, H200).variant
        assert emitted == called
