"""--sharded: kernels of rows that several devices hold, on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.helpers.cli_helpers import document, ok, refused

PLAIN = "softmax_f32_1000_block_p4_c8_g128_b128_m12_pdl1"
NAME = PLAIN.replace("_block", "_sharded_block")


def test_list_show_and_emit(tmp_path: Path) -> None:
    asked = ("--cols", 64128, "--dtype", "bfloat16", "--sharded")
    names = [each["name"] for each in document(ok("list", *asked, "--json"))]
    assert names
    assert all(name.startswith("softmax_bf16_64128_sharded_cluster_") for name in names)
    ok("emit", *asked, "--out", tmp_path)
    files = json.loads((tmp_path / "manifest.json").read_text())["files"]
    (entry,) = files.values()
    assert entry["problem"]["layout"] == "sharded"
    assert [each["name"] for each in entry["operands"]][2:5] == ["mailboxes", "mailbox", "alarm"]
    explained = document(ok("explain", "4096x64128", *asked[2:], "--arch", "sm_90", "--json"))
    assert (explained["layout"], explained["variant"]) == ("sharded", names[0])
    shown = ok("show", NAME, "--sharded").stdout
    assert "const long long* mailboxes" in shown
    (alarm,) = re.findall(r"//   alarm:   (.*\n(?://     .*\n)*)", shown)
    assert alarm.startswith("0 at first; 1 + the number of a shard that did not come")
    assert "zero it and all mailboxes" in alarm
    assert "alarm:   " not in ok("show", PLAIN).stdout


def test_every_candidate_is_of_functions_that_have_one(tmp_path: Path) -> None:
    ok("emit", "--all", "--cols", 1, "--dtype", "float64", "--sharded", "--out", tmp_path)
    files = json.loads((tmp_path / "manifest.json").read_text())["files"].values()
    functions = {entry["problem"]["function"] for entry in files}
    assert {"softmax", "log_softmax_lse", "logsumexp", "entropy", "partial"} <= functions
    assert "softmax_backward" not in functions
    assert {entry["strategy"] for entry in files} <= {"block", "cluster"}


def test_what_is_refused() -> None:
    wide = ("--cols", 4_000_000, "--sharded")
    narrower = "; take more GPUs, so that a shard is narrower"
    printed = ok("list", *wide).stderr
    assert (
        f"no strategy has a setting for softmax_f32_4000000_sharded on sm_90{narrower}" in printed
    )
    told = refused(2, "emit", "--all", *wide, "--out", "kernels")
    assert told == (
        f"no strategy has a setting for 4000000 columns on sm_90, so nothing is emitted{narrower}"
    )
    told = refused(2, "emit", "--cols", 1000, "--sharded", "--variant", "warp", "--out", "kernels")
    assert told.endswith("shows what has; only block and cluster have sharded kernels")
    told = refused(2, "emit", *wide, "--variant", "block", "--out", "kernels")
    assert told.endswith(narrower)
    told = refused(2, "show", PLAIN, "--sharded")
    assert "is for rows on one device, and --sharded was given" in told
    told = refused(2, "list", "--cols", 100, "--sharded", "--strided", 1)
    assert "give sharded alone" in told
    told = refused(2, "run", "--variant", NAME, "--device", "cpu")
    assert f"`softgen verify --device cpu --variant {NAME}` runs it on three" in told
