"""Random command lines and hostile files, of seeded generators: never a traceback.

What only costs time has a stand-in: the emulator, NVRTC, the variant matrix and the machine's
report. Everything before and after it is the real thing.
"""

from __future__ import annotations

import functools
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from softgen.bench.record import Finding, Machine, Status, records_of, to_csv
from softgen.bench.shape import Shape
from softgen.cli import app, group
from softgen.cli import cache as cache_commands
from softgen.errors import MissingDependencyError
from softgen.problems import numerics
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import Source
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.tuning import cache as cache_module
from softgen.tuning.entry import Entry, Key, Timing
from softgen.verify.verify import Report
from tests.helpers import cli_helpers
from tests.helpers.cli_helpers import cli

LINES = 160
FILES = 120
SECONDS = 60.0
KNOWN_CODES = {0, group.FAILED, group.USAGE, group.NO_DEVICE, group.WRONG_RESULT}

Draw = Callable[[Random], str]


def one_of(*choices: object) -> Draw:
    return lambda random: str(random.choice(choices))


def mostly(good: Draw, *bad: object) -> Draw:
    """Return a draw that is good eight times of ten."""
    return lambda random: good(random) if random.random() < 0.8 else str(random.choice(bad))


def junk(random: Random) -> str:
    """Return a word that nobody meant."""
    letters = "ab_09.-=x*[]{}'\"\\ \t\né٣☃\x1b\ud800%$#~/:,"
    return "".join(random.choice(letters) for _ in range(random.randrange(12)))


LONG = "1" + "0" * 400
NUMBERS = (-1, "1e3", "", "inf", "nan", "0x10", LONG, "9" * 5000, 2**63, 2**64, "٣", "1_000", " 7")
MANY = (2**40 + 1, 10**20, LONG, LONG, LONG)  # numbers, but of rows that nothing holds
ROWS = mostly(one_of(0, 1, 3, 64, 4096, 2**20, 2**40), *MANY, *NUMBERS)
COLS = mostly(one_of(1, 2, 7, 8, 33, 1000, 1024, 4095, 50257), 0, 2**20, 2**40, *NUMBERS)
NAMES = ("float16", "bfloat16", "float32", "float64")
DTYPE = mostly(one_of(*NAMES), "int8", "float", "Float32", "", "half")
ALGORITHM = mostly(one_of("softmax", "log_softmax"), "softmin", "")
ARCH = mostly(one_of("sm_75", "sm_80", "sm_90", "sm_120", "90", "sm90"), "", "sm_1", "x", LONG)
SMS = mostly(one_of(1, 16, 78, 132, 1024), 0, 1025, *NUMBERS)
ALIGNMENT = mostly(one_of(1, 2, 4, 8, 16), 0, 3, *NUMBERS)
STRATEGIES = ("warp", "block", "online", "safe", "split", "serial", "shared", "naive", "oneflow")
FULL = ("softmax_f32_1000_safe_b256", "softmax_f32_1000_warp_p4_c32_g32_r1_pad_b128")
BAD_NAMES = ("best", "", "softmax_f32_1000", "warp_", "softmax_f32_0_safe_b256", "_", "Warp")
STRATEGY = mostly(one_of(*STRATEGIES, *STRATEGIES, *FULL), *BAD_NAMES)
SHAPE = mostly(one_of("8x8", "4096x1024", "3 * 5"), "0x5", "8", "", "8xx8", f"{LONG}x8")
SUITE = mostly(one_of("triton", "llm", "drawn", "custom"), "trition", "", "all")
FLAG: Draw = one_of("")  # an option without a value

COMMON: dict[str, Draw] = {
    "--cols": COLS,
    "--dtype": DTYPE,
    "--algorithm": ALGORITHM,
    "--out-dtype": DTYPE,
    "--alignment": ALIGNMENT,
    "--rows": ROWS,
    "--arch": ARCH,
    "--sms": SMS,
    "--variant": STRATEGY,
    "--json": FLAG,
}


def commands(folder: Path) -> dict[str, dict[str, Draw]]:
    """Return the options of each command, and what they are given; the empty one is an argument."""
    file = one_of(*(folder / name for name in ("x.npy", "f.csv", "c.json", "s.txt")), folder)
    inside = mostly(one_of(folder / "new", folder / "other"), folder / "no" / "new", folder, "")
    return {
        "list": COMMON,
        "show": COMMON | {"": mostly(one_of(*FULL), *BAD_NAMES)},
        "explain": {
            key: COMMON[key] for key in COMMON if key not in ("--cols", "--rows", "--variant")
        }
        | {"": SHAPE, "--batch-invariant": FLAG},
        "emit": COMMON
        | {"--out": mostly(one_of(folder / "out"), folder / "x.npy")}
        | {"--stdout": FLAG, "--check": FLAG, "--all": FLAG},
        "run": {key: COMMON[key] for key in ("--dtype", "--algorithm", "--out-dtype", "--json")}
        | {"--rows": mostly(one_of(0, 1, 3, 64), *MANY, *NUMBERS), "--cols": COLS, "--input": file}
        | {"--variant": STRATEGY, "--seed": mostly(one_of(0, 7), *NUMBERS), "--output": inside}
        | {"--device": mostly(one_of("cpu", "auto"), "cuda", "gpu")},
        "tune": {"--shape": SHAPE, "--suite": SUITE, "--shapes": file, "--dtype": DTYPE}
        | {"--budget": mostly(one_of(1, 0.5), 0, *NUMBERS), "--json": FLAG}
        | {"--candidates": FLAG},
        "bench": {"--suite": SUITE, "--shape": SHAPE, "--from": file, "--csv": inside}
        | {"--peers": mostly(one_of("softgen", "torch,cupyx"), "torhc", "", ","), "--json": FLAG}
        | {"--dtype": DTYPE, "--seconds": mostly(one_of(1), *NUMBERS), "--quick": FLAG},
        "verify": {"--device": mostly(one_of("cpu", "auto", "cuda"), "gpu"), "--all": FLAG}
        | {"--variant": mostly(one_of("warp", "safe"), "best", ""), "--dtype": DTYPE}
        | {"--json": FLAG},
        "cache ls": {"--json": FLAG},
        "cache path": {"--json": FLAG},
        "cache clear": {"--json": FLAG},
        "cache export": {"": inside, "--table": FLAG, "--json": FLAG},
        "cache import": {"": file, "--json": FLAG},
        "doctor": {"--json": FLAG},
    }


def draw_line(random: Random, options: dict[str, dict[str, Draw]]) -> list[str]:
    """Return the words of a command line, one in ten of them with a word that is out of place."""
    weights = [1 if " " in name or name == "doctor" else 4 for name in options]
    (name,) = random.choices([*options], weights)
    words = name.split()
    table = options[name]
    for option in random.sample([*table], random.randint(0, min(6, len(table)))):
        value = table[option](random)
        if not option:
            words.append(value)
        elif table[option] is FLAG:
            words.append(option)
        else:
            words += random.choice(([option, value], [f"{option}={value}"]))
    if random.random() < 0.1:
        words.insert(random.randrange(len(words) + 1), junk(random))
    return words


def emulate(source: Source, x: Any, others: Sequence[Any] = ()) -> Any:
    """Compute what the emulator would, from the definition."""
    problem = source.variant.problem
    given = zip((x, *others), problem.inputs, strict=True)
    values = [numerics.decode(each, operand.dtype) for each, operand in given]
    wide = any(operand.dtype is DType.FLOAT64 for operand in problem.results)
    exact = numerics.exact_results(problem, values, wide)
    return tuple(
        numerics.encode(each, operand.float_type)
        for each, operand in zip(exact, problem.results, strict=True)
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put stand-ins where time goes, and let there be no GPU."""

    def no_nvrtc(*_: object) -> None:
        raise MissingDependencyError("no NVRTC in this test")

    monkeypatch.setattr("softgen.devices.gpu.device.available", lambda: False)
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: "there is none")
    monkeypatch.setattr("softgen.devices.emulator.run_each", emulate)
    monkeypatch.setattr("softgen.devices.emulator.program.find_compiler", pytest.fail)
    monkeypatch.setattr("softgen.devices.gpu.compile.compile_offline", no_nvrtc)
    monkeypatch.setattr("softgen.verify.verify.verify", lambda **_: Report())
    monkeypatch.setattr("softgen.cli.checks.examine", lambda: [])


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return a list that the name of each command joins when the parser calls it."""
    called: list[str] = []

    def counted(callback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(callback)
        def run(*words: Any, **named: Any) -> Any:
            called.append(callback.__name__)
            return callback(*words, **named)

        return run

    for command in (*app.registered_commands, *cache_commands.app.registered_commands):
        assert command.callback is not None
        monkeypatch.setattr(command, "callback", counted(command.callback))
    cli_helpers.command.cache_clear()
    yield called
    cli_helpers.command.cache_clear()


def sample_csv() -> bytes:
    found = [Finding("limit", Status.TIMED, 2.0, 0.0), Finding("softgen", Status.TIMED, 2.5, 1e-7)]
    shape = Shape("triton", DType.FLOAT32, 1000, 1000)
    return to_csv(records_of(shape, found, Machine("a GPU", "580", "softgen 1"))).encode()


def sample_json(folder: Path) -> bytes:
    """Return what `softgen cache export` writes of one entry."""
    problem = Problem.of("softmax", "float32", 1000)
    winner = Variant(problem, Safe(256))
    environment: dict[str, str | int] = {"device": "a GPU", "arch": "sm_90", "driver": 13}
    entry = Entry(
        Key.of(problem, 4096, environment), winner, (Timing(winner.name, 10.5, 10.25, 11.0),), ()
    )
    cache_module.store(entry)
    cache_module.export_file(folder / "export.json")
    return (folder / "export.json").read_bytes()


def sample_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(24, dtype=np.float32).reshape(3, 8))
    return file.getvalue()


SHAPES = b"# shapes\n8x8\n4096 x 1024\n\n16x3 # small\n"


def no_traceback(result: Result, words: list[str]) -> None:
    assert isinstance(result.exception, SystemExit | None), (words, result.exc_info)
    assert result.exit_code in KNOWN_CODES, words
    assert "Traceback" not in result.stderr, (words, result.stderr)
    if group.asks_for_json(words) and "-h" not in words and "--help" not in words:
        json.loads(result.stdout, parse_constant=pytest.fail)


def test_random_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # emit writes into the folder it is in
    whole = {"x.npy": sample_npy(), "f.csv": sample_csv(), "s.txt": SHAPES}
    whole["c.json"] = sample_json(tmp_path)
    random, options = Random(9), commands(tmp_path)  # 9 draws long numbers of rows five times
    codes: dict[int, int] = {}
    started = time.process_time()  # other processes of the run may have the cores
    for _ in range(LINES):
        for name, data in whole.items():  # a line may name any of them as its output
            (tmp_path / name).write_bytes(data)
        words = draw_line(random, options)
        result = cli(*words)
        no_traceback(result, words)
        codes[result.exit_code] = codes.get(result.exit_code, 0) + 1
    took = time.process_time() - started
    print(f"{len(parsed)} of {LINES} lines passed the parser; codes {codes}; {took:.1f} s")
    assert len(parsed) >= LINES / 2
    assert set(parsed) >= {"run", "emit", "list_variants", "show", "tune", "bench", "verify"}
    assert codes.keys() >= {0, group.USAGE, group.NO_DEVICE}
    assert codes[0] >= LINES / 5
    assert took < SECONDS


def spoil(random: Random, data: bytes) -> bytes:
    """Return a file with bytes changed, left out or repeated, or words put where values were."""
    words = [b"nan", b"-1", b"1e999", b'"', b"[" * 3000, b"null", b"{}", b"\xff\xfe", b"\0", b",\n"]
    words += [b"9" * 5000, b"true", b"0x8", b"\\u0000", b"x" * 200_000, b"\r", b"#", b""]
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(made) + 1)
        match random.randrange(5):
            case 0:
                made[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del made[at : at + random.randrange(40)]
            case 2:
                made[at:at] = made[at : at + random.randrange(100)]
            case 3:
                made[at : at + random.randrange(8)] = random.choice(words)
            case 4:
                values = [*re.finditer(rb"[\w.+-]+", made)]
                found = random.choice(values) if values else None
                if found is not None:
                    made[found.start() : found.end()] = random.choice(words)
    return bytes(made)


def test_hostile_files(tmp_path: Path) -> None:
    """The same generator for arrays, tables of figures, exports of choices and lists of shapes."""
    random = Random(1)
    kinds = [
        ("x.npy", sample_npy(), ["run", "--device", "cpu", "--input"]),
        ("f.csv", sample_csv(), ["bench", "--from"]),
        ("c.json", sample_json(tmp_path), ["cache", "import"]),
        ("s.txt", SHAPES, ["tune", "--shapes"]),
    ]
    refused = 0
    for number in range(FILES):
        name, data, words = kinds[number % len(kinds)]
        path = tmp_path / name
        path.write_bytes(spoil(random, data))
        words = [*words, str(path), *(["--json"] if random.random() < 0.5 else [])]
        result = cli(*words)
        no_traceback(result, [*words, repr(path.read_bytes()[:300])])
        refused += result.exit_code == group.USAGE
    assert FILES / 4 < refused < FILES * 0.9  # neither harmless nor all stopped at the first byte


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("show", "--cols", "8")])
def test_a_planted_bug_shows_its_traceback(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked above is no handler of everything: this would be one of its findings."""

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Safe, "candidates", broken)
    monkeypatch.setattr("softgen.strategies.warp.Warp.candidates", broken)
    result = cli(*words)
    with pytest.raises(AssertionError):
        no_traceback(result, list(words))
    assert isinstance(result.exception, KeyError) or "KeyError: 'a bug'" in result.stderr
