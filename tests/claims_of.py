"""What the pages say in figures: sentences made from the CSV files, by page.

A sentence stands on its page as it is made here, but for line breaks. `files` are under docs/.
"""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from softgen.bench.record import LIMIT, SOFTGEN
from softgen.bench.scale import H200, predict
from tests.figures import (
    DOCS,
    FIVE,
    NOISE,
    call,
    calls,
    five,
    median,
    rows,
    single,
    spread,
)

UNTUNED, AGAIN = "softgen-untuned", "softgen-again"
LIBRARIES = ("torch", "liger", "triton", "cupyx", "torch.compile", "quack")
OF_FIVE = tuple(f"benchmark/{name}.csv" for name in FIVE)
SINGLE = "published/single.csv"
BEST_GUESS = "softgen's best guess, untuned"  # as the ladder's file has it
GPT, SHARDED_GPT = "gpt/losses.csv", "vocabulary_parallel/losses.csv"


@dataclass(frozen=True)
class Claim:
    """A sentence, and the files that its figures come from."""

    text: str
    files: tuple[str, ...]


def say(text: str, *files: str) -> Claim:
    """Return a claim."""
    return Claim(text, files)


def bench(*names: str) -> tuple[str, ...]:
    """Return the benchmark's files of those names."""
    return tuple(f"benchmark/{name}.csv" for name in names)


def percent(ratio: float, digits: int = 0) -> str:
    """Return by how much a ratio differs from 1."""
    return f"{abs(ratio - 1) * 100:.{digits}f}%"


def listed(words: list[str]) -> str:
    """Return words as `a, b and c`."""
    return f"{', '.join(words[:-1])} and {words[-1]}"


# README and performance.md


def _five_suites() -> tuple[str, str, str]:
    """Return how softgen stands beside the next, in one family, and in `packs`."""
    every = five()
    level = sum(each.lead <= 1 + NOISE for each in every)
    assert min(each.lead for each in every) >= 1
    family = sum((each.dtype, each.rows) == ("float32", 4096) for each in every)
    worst = min(calls("packs"), key=lambda each: each.lead)
    ahead = f"`{worst.other}` is {percent(worst.lead, 1)} ahead at {worst.size}"
    return f"{level}, and ahead by more at {len(every) - level}", f"{family}", ahead


def _slow_axis() -> str:
    worst = max(calls("axes"), key=lambda each: each.over_limit)
    return f"up to {worst.over_limit:.2f} of a copy's time: {worst.size}."


def _patched_models() -> tuple[str, str, str]:
    """Return what patch(model) saves of an eager step, and a compiled step's share and saving."""

    def numbers(run: str) -> list[tuple[float, float]]:
        cells = [model[run].split(", ") for model in rows("published/huggingface.csv")]
        return [(float(time.split()[0]), float(memory.split()[0])) for time, memory in cells]

    def shares(torch: str, mine: str, which: int) -> list[float]:
        pairs = zip(numbers(torch), numbers(mine), strict=True)
        return sorted(theirs[which] / ours[which] for ours, theirs in pairs)

    eager = shares("PyTorch, eager", "patch(model)", 0)
    compiled = shares("PyTorch, compiled", "patch(model), compiled", 0)
    memory = shares("PyTorch, compiled", "patch(model), compiled", 1)
    return (
        f"{(1 - eager[-1]) * 100:.0f} to {percent(eager[0])}",
        f"{compiled[0]:.2f} to {compiled[-1]:.2f}",
        f"{(1 - memory[-1]) * 100:.0f} to {percent(memory[0])}",
    )


def _apart_in_two_runs() -> tuple[float, float, str]:
    """Return by how much times of two runs differ: in the median, at most, and where."""
    pairs = [(call("llm", each.size), each) for each in calls("batch_invariant")]
    apart = {one.size: abs(one.us[SOFTGEN] / two.us[SOFTGEN] - 1) for one, two in pairs}
    most = max(apart, key=apart.__getitem__)
    return median([*apart.values()]), apart[most], most


def _felt() -> Iterator[Claim]:
    """Yield the lines of README's table, and what its first comes to where all is compiled."""
    path = "published/linear_gpt.csv"
    gpt = {row[""]: f"{row['a step']}, {row['peak memory']}" for row in rows(path)}
    yield say(
        f"| {gpt['softgen, eager']} | PyTorch with SDPA {gpt['PyTorch, eager']}; Liger "
        f"{gpt['Liger, eager']} |",
        path,
    )
    yield say(
        "that GPT takes {}, and PyTorch's {}.".format(
            *(gpt[f"{who}, compiled"].replace(", ", " and ") for who in ("softgen", "PyTorch"))
        ),
        path,
    )
    path = "published/policy_step.csv"
    mine, _, compiled, _ = rows(path)
    at_most = "memory beside the logits, at most"
    yield say(
        f"| {mine['ms']} ms, {mine[at_most]} | `torch.compile` {compiled['ms']} ms, "
        f"{compiled[at_most]} |",
        path,
    )
    loss = call("losses", "bfloat16 8192 x 151936", "cross_entropy_grad").us
    ms = {peer: f"{time / 1e3:.2f} ms" for peer, time in loss.items()}
    yield say(
        f"| {ms[SOFTGEN]} | Liger {ms['liger']}, `torch.compile` {ms['torch.compile']} |",
        *bench("losses"),
    )
    for name, case, what in (
        ("hooks", "causal, scaled, 4 x 16 x 2048 x 2048", "64 heads of 2048 x 2048"),
        ("axes", "axis 1 of 64 x 21 x 512 x 512", "64 x 21 x 512 x 512, axis 1"),
    ):
        us = call(name, f"bfloat16 {case}", "softmax").us
        yield say(
            f"{what} | {us[SOFTGEN]:.0f} us | `torch.compile` {us['torch.compile']:.0f} us |",
            *bench(name),
        )
    path = "vocabulary_parallel/steps.csv"
    step = {
        row["run"]: f"{float(row['ms a step']):.1f} ms, {row['peak GB']} GB" for row in rows(path)
    }
    yield say(f"| {step[SOFTGEN]} | `loss_parallel` {step['loss_parallel']} |", path)


def readme() -> Iterator[Claim]:
    """Yield the sentences of README.md."""
    yield from _felt()
    searched = calls("compiled")
    slower = spread([each.over(SOFTGEN, "torch.compile-max-autotune") for each in searched])
    yield say(
        f"with the search of `max-autotune` it takes {slower} times softgen's time, at "
        f"{len(searched)} shapes.",
        *bench("compiled"),
    )
    level, family, packs = _five_suites()
    count, (usual, most, _) = len(five()), _apart_in_two_runs()
    yield say(
        f"softgen is behind no other library at any of the {count} timings of five suites: level "
        f"with the next, within {NOISE * 100:.0f}%, at {level}. Two runs of one suite differ by "
        f"{usual * 100:.1f}% in the median and by {most * 100:.1f}% at most. {family} of the "
        f"{count} are float32 with 4096 rows. In a sixth suite, `packs`, {packs}.",
        *OF_FIVE,
        *bench("packs", "batch_invariant"),
    )
    _, compiled, memory = _patched_models()
    yield say(
        f"with `patch(model)` takes {compiled} of the time and {memory} less memory",
        "published/huggingface.csv",
    )
    yield say(
        "float32 4 x 16777216 takes "
        f"{call('online', 'float32 4 x 16777216').over_limit:.2f} of a copy's time",
        *bench("online"),
    )
    few = call("llm", "bfloat16 8 x 128256")
    yield say(
        f"bfloat16 8 x 128256 takes {few.over_limit:.1f} of a copy's {few.us[LIMIT]:.1f} us",
        *bench("llm"),
    )
    yield say(f"axes that are not the last take {_slow_axis()}", *bench("axes"))
    host = {row[""]: row for row in rows("published/host_times.csv")}
    yield say(
        "takes as much host time as `torch.softmax` "
        f"({host['softmax, no gradient']['PyTorch']} us)",
        "published/host_times.csv",
    )


def performance() -> Iterator[Claim]:
    """Yield the sentences of docs/performance.md."""
    every = five()
    level, family, packs = _five_suites()
    count = {name: sum(name in each.us for each in every) for name in LIBRARIES}
    yield say(
        f"Of the {len(every)} timings of the first five suites PyTorch was timed at all "
        f"{count['torch']}, Liger at {count['liger']}, Triton at {count['triton']}, CuPy at "
        f"{count['cupyx']}, `torch.compile` at {count['torch.compile']} and QuACK at "
        f"{count['quack']}.",
        *OF_FIVE,
    )
    yield say(
        f"softgen is behind no other library at any of the {len(every)} timings. At "
        f"{level.replace(', and', ' of them it is level with the next, within 2%, and')}. "
        f"{family} of the {len(every)} are the widths of one family, float32 with 4096 rows. The "
        f"suite `packs` is not among them: there {packs}. softgen takes "
        f"{spread([each.over_limit for each in every])} of the copy's time.",
        *OF_FIVE,
        *bench("packs"),
    )
    usual, most, where = _apart_in_two_runs()
    yield say(
        "Between two runs, those of `llm` and of batch invariance, softgen's times differ by "
        f"{usual * 100:.1f}% in the median and by {most * 100:.1f}% at most ({where}).",
        *bench("llm", "batch_invariant"),
    )


def dependent_launch() -> Iterator[Claim]:
    """Yield the sentence of docs/lab/dependent_launch.md."""
    yield say(
        f"The better of the two takes {spread(_saved(5))} us off an independent launch, and "
        f"{spread(_saved(8))} us off one in a chain.",
        "published/pdl.csv",
    )


def _saved(plain: int) -> list[float]:
    """Return what the better dependent launch takes off the plain one of that column."""
    with (DOCS / "published" / "pdl.csv").open(newline="") as file:
        _, *lines = csv.reader(file)
    return [float(line[plain]) - min(map(float, line[plain + 1 : plain + 3])) for line in lines]


def sources() -> Iterator[Claim]:
    """Yield the sentence of docs/sources.md."""
    yield say(f"which takes {spread(_saved(5), 1)} us off a launch on an H200", "published/pdl.csv")


def front() -> Iterator[Claim]:
    """Yield the lines of the table of docs/index.md."""
    for what, size in (
        ("causal attention scores", "bfloat16 causal, scaled, 4 x 16 x 2048 x 2048"),
        ("scores with a softcap", "bfloat16 softcap, 4 x 16 x 2048 x 2048"),
    ):
        us = call("hooks", size).us
        yield say(
            f"| {what}, 4 x 16 x 2048 x 2048 | {us[SOFTGEN]:.0f} us | "
            f"{us['torch.compile']:.0f} us |",
            *bench("hooks"),
        )
    steps = {row[""]: row for row in rows("published/policy_step.csv")}
    mine, compiled = (
        steps[f"`{name}`" if "(" in name else name]
        for name in (
            "softgen.torch.token_log_probs(..., return_entropy=True)",
            "`torch.compile` of PyTorch's functions",
        )
    )
    memory = "memory beside the logits, at most"
    yield say(
        f"| log-probabilities and entropies with gradients, 8 x 1024 x 151936 | {mine['ms']} ms, "
        f"{mine[memory]} | {compiled['ms']} ms, {compiled[memory]} |",
        "published/policy_step.csv",
    )
    runs = {row[""]: row for row in rows("published/linear_gpt.csv")}
    for mode in ("eager", "compiled"):
        cells = [
            f"{runs[f'{who}, {mode}']['a step']}, {runs[f'{who}, {mode}']['peak memory']}"
            for who in ("softgen", "PyTorch")
        ]
        yield say(
            f"| a step of a small GPT, {mode}, by the loss of hidden states | {cells[0]} | "
            f"{cells[1]} |",
            "published/linear_gpt.csv",
        )
    leads = [each.over(SOFTGEN, "torch.compile") for each in calls("axes")]
    yield say(
        f"Along an axis that is not the last `torch.compile` takes {median(leads):.2f} of "
        f"softgen's time in the median of {len(leads)} calls.",
        *bench("axes"),
    )


def numerics() -> Iterator[Claim]:
    """Yield what batch invariance costs."""
    cost = {each.size: each.over(SOFTGEN, "softgen-invariant") for each in calls("batch_invariant")}
    plain = rows("published/batch_invariant_plain.csv")
    for line in plain:
        where = f"{line['dtype']} {line['rows x cols']}"
        cost[where] = float(line["invariant / usual"].split()[0])
    widths = {where: (int(where.split()[-3]), int(where.split()[-1])) for where in cost}
    odd = [cost[where] for where, (_, cols) in widths.items() if cols % 8]
    few = [
        cost[where]
        for where, (count, cols) in widths.items()
        if not cols % 8 and (count, cols) in ((128, 1024), *((n, 128256) for n in (1, 8, 64, 256)))
    ]
    many = [
        cost[where]
        for where, (count, cols) in widths.items()
        if not cols % 8 and count > 256 and (count, cols) != (16384, 512)
    ]
    yield say(
        f"It costs up to {percent(max(many))} where rows are many and whole packs, up to "
        f"{percent(max(odd))} at odd widths, and {(min(few) - 1) * 100:.0f} to "
        f"{percent(max(few))} where rows are few",
        *bench("batch_invariant"),
        "published/batch_invariant_plain.csv",
    )


# The other pages


def emulator() -> Iterator[Claim]:
    """Yield how many mutants were seen, and what memory a soak took."""
    runs = rows("published/mutation.csv")
    seen = listed([f"{run['seen']} of {run['broken']}" for run in runs])
    share = sum(int(run["seen"]) for run in runs) / sum(int(run["broken"]) for run in runs)
    yield say(f"{seen} seen, {share * 100:.1f}% together", "published/mutation.csv")
    for kind, begins in (("cupy", "in"), ("torch", "Calls of tensors took")):
        soak = [run for run in rows("published/soak.csv") if run["calls_of"] == kind]
        taken = listed([run["resident_mib"] for run in soak])
        (device,) = {run["device_mib"] for run in soak}
        yield say(f"{begins} {soak[-1]['seconds']} s", "published/soak.csv")
        yield say(f"{taken} MiB after 10%, 50% and 100%", "published/soak.csv")
        yield say(f"took {device} MiB each time", "published/soak.csv")


def architecture() -> Iterator[Claim]:
    """Yield how many files a part has."""
    parts = DOCS.parent / "templates" / "parts"
    names = ("max_sum_dot", "max_sum_below", "max_sum")
    count = {part: len([*(parts / part).glob("*.cuh.j2")]) for part in names}
    own = DOCS.parent / "tests" / "project" / "own" / "log_unit"
    files = len([*(own / "templates" / "parts").rglob("*.cuh.j2")])
    page = "[a test's](../tests/project/own/log_unit/log_unit.py)"
    yield say(f"{files} files in {page}", "tests/project/own/log_unit")
    yield say(
        f"`max_sum_dot`, of rows along the last axis only, has {count['max_sum_dot']} files, "
        f"`max_sum_below`, of the same strategies, {count['max_sum_below']}, and "
        f"`max_sum`, of all strategies, has {count['max_sum']}",
        "templates/parts",
    )


def _apart(path: str, one: str, other: str) -> tuple[float, float]:
    """Return how far two curves are apart, in the mean and at most."""
    found = [abs(float(step[one]) - float(step[other])) for step in rows(path)]
    return statistics.mean(found), max(found)


def tensor_parallel() -> Iterator[Claim]:
    """Yield the sentences of docs/tensor_parallel.md, and its table of the model."""
    for step in rows("vocabulary_parallel/steps.csv")[:2]:
        name = step["run"] if step["run"] == SOFTGEN else f"`{step['run']}`"
        yield say(
            f"| {name} | {step['last loss']} | {step['ms a step']} ms | {step['kernels, ms']} ms | "
            f"{step['of the loss']} ms | {step['share']} | {step['peak GB']} GB |",
            "vocabulary_parallel/steps.csv",
        )
    mean, most = _apart(SHARDED_GPT, "softgen", "loss_parallel")
    yield say(
        f"softgen's curve is {mean:.4f} from that of `loss_parallel` in the mean and {most:.4f} at "
        "most.",
        SHARDED_GPT,
    )
    mean, most = _apart(SHARDED_GPT, "loss_parallel turned", "loss_parallel")
    yield say(f"in another order, is {mean:.4f} and {most:.4f} from it.", SHARDED_GPT)


def distributed() -> Iterator[Claim]:
    """Yield the sentence of docs/lab/distributed.md."""
    loss = "`cross_entropy`, the same, directly"
    alone = "`softgen.torch.cross_entropy` of one shard alone, forward and backward"
    table = {row["what"]: row["64 rows"] for row in rows("published/sharded_calls.csv")}
    yield say(
        f"a loss with its gradient takes about {table[loss]} us of it at 64 rows, of which "
        "PyTorch's autograd is most. `softgen.torch.cross_entropy` of one GPU takes "
        f"{table[alone]} there",
        "published/sharded_calls.csv",
    )


def oneflow() -> Iterator[Claim]:
    """Yield how softgen's reproduction stands beside OneFlow's header."""
    pairs = rows("published/oneflow_header.csv")
    ratio = {f"{row['dtype']} {row['rows x cols']}": float(row["ratio"]) for row in pairs}
    within = sum(abs(each - 1) <= 0.05 for each in ratio.values())
    quick = [percent(ratio[f"float32 {size}"]) for size in ("8192 x 8192", "20000 x 5000")]
    yield say(
        f"{within} of the {len(ratio)} shapes are within 5%. At float32 8192 and 5000 columns "
        f"softgen's is {quick[0]} and {quick[1]} quicker.",
        "published/oneflow_header.csv",
    )
    yield say(
        "The benchmark, which writes other memory between replays, has "
        f"{call('oneflow', 'float16 49152 x 32').us['oneflow']:.2f} us for float16 49152 x 32.",
        *bench("oneflow"),
    )


def _gains() -> list[tuple[str, str, list[float]]]:
    """Return of each two steps their names, and the time before over that after by columns."""
    steps = {row["step"]: row for row in rows("published/ladder.csv")}
    columns = ("1024", "8192", "32768", "131072")
    names = ("naive", "tree", "coalesced", "shuffle", "float4", "unrolled", "online_rescale")
    of_steps = [(f"`{a}`", f"`{b}`") for a, b in itertools.pairwise(names)]
    of_steps += [("`article_safe`", "`article_online`"), ("`online_rescale`", BEST_GUESS)]
    return [
        (a, b, [float(steps[a][each]) / float(steps[b][each]) for each in columns])
        for a, b in of_steps
    ]


def ladder_measured() -> Iterator[Claim]:
    """Yield the table of gains of docs/lab/ladder.md."""
    for before, after, gains in _gains():
        cells = " | ".join(f"{gain:.0f}" if gain > 10 else f"{gain:.2f}" for gain in gains)
        to = "the best guess" if after == BEST_GUESS else after
        yield say(f"| {before} to {to} | {cells} |", "published/ladder.csv")


def ladder() -> Iterator[Claim]:
    """Yield what the figures of the ladder say."""
    of = {after: gains for _, after, gains in _gains()}
    file = "published/ladder.csv"
    yield say(
        f"Coalescing is the largest step after the block: {of['`coalesced`'][2]:.1f} times at "
        "32768 columns.",
        file,
    )
    slight = sorted((of["`shuffle`"][1], of["`shuffle`"][2]))
    yield say(
        f"Shuffles gain {(slight[0] - 1) * 100:.0f} to {percent(slight[1])} at 8192 and 32768 "
        "columns",
        file,
    )
    yield say(f"Packs gain {of['`float4`'][3]:.1f} times where a row leaves L1 and L2", file)
    least, *_, most = sorted(of["`unrolled`"])
    wins = sorted(each for each in of["`unrolled`"] if each > 1)
    losses = sorted((1 - each) * 100 for each in of["`unrolled`"] if each < 1)
    assert (least, most) == (1 - losses[-1] / 100, wins[-1])
    yield say(
        f"Unrolling gains {(wins[0] - 1) * 100:.0f} to {percent(wins[-1])} and loses "
        f"{losses[0]:.0f} to {losses[-1]:.0f}% at 8192 and 32768",
        file,
    )
    yield say(f"One pass less is worth {spread(of['`online_rescale`'])}", file)
    yield say(
        f"Its gain of {of['`article_online`'][3]:.2f} shows at 131072 columns only",
        file,
    )
    yield say(f"is worth {spread(of[BEST_GUESS])} more, untuned.", file)


def huggingface() -> Iterator[Claim]:
    """Yield the sentence of docs/huggingface.md."""
    eager, compiled, _ = _patched_models()
    yield say(
        f"With `patch(model)` an eager step takes {eager} less time, and a compiled one {compiled} "
        "of PyTorch's.",
        "published/huggingface.csv",
    )


def gpt() -> Iterator[Claim]:
    """Yield the sentences of docs/lab/gpt.md, and its table of curves."""
    steps = {row[""]: row["its kernels"] for row in rows("published/linear_gpt.csv")}
    yield say(
        f"its kernels take {steps['softgen, compiled']}, and PyTorch's "
        f"{steps['PyTorch, compiled'].removesuffix(' ms')}.",
        "published/linear_gpt.csv",
    )
    names = {"torch": "PyTorch", "softgen": "softgen"}
    curves = ("torch", "softgen", "softmax turned", "loss turned", "both turned")
    for i, one in enumerate(curves[:-1]):
        cells = ["" for _ in curves[1 : i + 1]]
        cells += ["{:.4f}, {:.4f}".format(*_apart(GPT, one, other)) for other in curves[i + 1 :]]
        line = " | ".join(["", names.get(one, one), *cells, ""])
        yield say(" ".join(line.split()), GPT)
    mean, most = _apart(GPT, "softgen", "torch")
    theirs = [_apart(GPT, *pair) for pair in itertools.combinations(set(curves) - {"softgen"}, 2)]
    yield say(
        f"softgen's curve is {mean:.4f} from PyTorch's in the mean and {most:.4f} at most. Two of "
        f"PyTorch's are up to {max(pair[0] for pair in theirs):.4f} and "
        f"{max(pair[1] for pair in theirs):.4f} apart.",
        GPT,
    )


def scale() -> Iterator[Claim]:
    """Yield the tables of docs/scale.md, and what two GPUs gain."""
    file = "scale/scaling.csv"
    us = {}
    for row in rows(file):
        count, columns = int(row["gpus"]), int(row["columns"])
        eager, graph = float(row["us_eager"]), float(row["us_graph"])
        us[row["function"], count, columns] = (eager, graph)
        wanted = predict(row["function"], int(row["rows"]), columns, count, H200).total
        yield say(
            f"| {row['function']} | {count} | {columns} | {graph:.0f} | {eager:.0f} | "
            f"{wanted:.0f} | {graph / wanted:.2f} |",
            file,
        )
    functions = ("softmax", "logsumexp", "cross_entropy")
    strong = [us[name, 1, 128256][1] / us[name, 2, 128256][1] for name in functions]
    weak = [us[name, 2, 256512][1] / us[name, 1, 128256][1] for name in functions]
    one, two = us["cross_entropy", 1, 128256][0], us["cross_entropy", 2, 128256][0]
    yield say(
        f"Two GPUs take a row of 128256 columns {strong[0]:.2f} times as fast as one by softmax, "
        f"{strong[1]:.2f} by logsumexp, and {strong[2]:.2f} by cross_entropy. With twice the "
        f"columns they take {listed([f'{each:.2f}' for each in weak])} of one GPU's time. That is "
        f"in a graph. Losses called one by one on two GPUs wait for the host: in that run they "
        f"took {two:.0f} us, and one GPU {one:.0f}, so two were {one / two:.2f} times as fast;",
        file,
    )
    known = (H200.memory, H200.launch, H200.exchange, H200.stall, H200.gather[0])
    keys = ("memory", "launch", "exchange", "wave", "gather")
    assert known == tuple(float(single()[key]) for key in keys)
    yield say(
        f"Assumed are {H200.links} GB/s of NVLink into a GPU, {H200.network} GB/s of network, and "
        f"{H200.gather[1]} us for a doubling of hosts.",
        "softgen/bench/scale.py",
    )
    for columns, name in itertools.product((128256, 1048576), functions):
        found = [predict(name, 4096, columns, count, H200) for count in (4, 8, 64, 1024)]
        cells = [f"{_three(each.total)} ({_three(each.exchange)})" for each in found]
        yield say(f"| {name} | {columns} | {' | '.join(cells)} |", "softgen/bench/scale.py")


def _three(us: float) -> str:
    """Return three digits, and no more than one behind the point."""
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def sharded() -> Iterator[Claim]:
    """Yield the sentence of docs/lab/sharded.md."""
    table = rows("published/sharded_kernels.csv")
    added = [float(row["sharded"]) - float(row["a shard alone"]) for row in table[1:]]
    assert all(round(each) == 1 for each in added)
    yield say(
        "The exchange adds about 1 us where all rows are on the GPUs at once.",
        "published/sharded_kernels.csv",
    )


# Of one session each: published/single.csv has the figures by their keys.
SINGLES: dict[str, tuple[str, ...]] = {
    "docs/lab/distributed.md": (
        "In a graph float32 16 x 4194304 takes {wide_direct} directly, {wide_gathered} by an "
        "all-gather, and {wide_alone} on one GPU for a shard alone; a copy of the shard takes "
        "{wide_copy}.",
        "a loss and its gradient took {loss_again} in another.",
        "the first call took {first_least} to {first_most} s with 16 candidates, and one of a "
        "program that finds the choice stored {first_stored}.",
        "So is `token_log_probs`: {ids_direct} directly, and {ids_gathered} by an all-gather, "
        "called one by one; {ids_graph_direct} and {ids_graph_gathered} in a graph.",
    ),
    "docs/hooks_table.md": (
        "with dropout takes {dropout_plain} us on an H200 with the setting that is the fastest "
        "without, and {dropout_guess} with its first guess.",
    ),
    "docs/lab/linear_losses.md": (
        "Tuned in {quack_tuning_least} to {quack_tuning_most} s, chunks of 4096 took {quack_tuned} "
        "ms for the first shape, and `fast` {quack_beside} beside them.",
    ),
    "docs/oneflow.md": ("the same kernel twice differs by {twice}% at most.",),
    "docs/ladder.md": ("instead of 256 it takes {article_1024} us there",),
    "docs/pytorch.md": (
        "a gradient that is registered in Python takes {python_gradient} us of each call",
    ),
    "docs/lab/host_time.md": ("which takes {tracking} us for any function of autograd",),
    "docs/lab/gpt.md": (
        "about 600: {small_least} to {small_most} ms beside that H200, where the kernels of "
        "softgen's step take {small_softgen} ms and those of PyTorch's {small_torch}.",
    ),
    "docs/scale.md": (
        "{quiet} us in another session, on a quiet host",
        "Measured are {memory} GB/s of memory, {launch} us a launch, {exchange} us an exchange, "
        "{wave} us a wave of rows and {gather} us an all-gather, on two H200s",
        "the all-gather of 4096 rows takes {gathered} us, and softmax around it {softmax_gathered} "
        "(two GPUs",
        "took {loss_host} us of Python and launches there, and {loss_host_one} by",
    ),
    "docs/sharded.md": (
        "with all warps polling bfloat16 4096 x 128256 in two shards took {poll_all} us on H200s, "
        "with one {poll_one}.",
    ),
    "docs/lab/sharded.md": (
        "128257 columns take {odd_shard} and float32 4096 x 128256 takes {f32_shard}, where a "
        "shard alone takes {f32_alone}.",
        "the other's call ended after {killed} s of 3",
    ),
    "docs/lab/spills.md": ("4096 x 151937, by {spilled}% on an H200.",),
    "docs/tuning.md": (
        "took {tune_one} s on one H200 and {tune_two} on two with",
        "Winners of both took the same time within {tune_within}%.",
    ),
}

PAGES: dict[str, Callable[[], Iterator[Claim]]] = {
    "README.md": readme,
    "docs/architecture.md": architecture,
    "docs/emulator.md": emulator,
    "docs/huggingface.md": huggingface,
    "docs/index.md": front,
    "docs/lab/dependent_launch.md": dependent_launch,
    "docs/lab/distributed.md": distributed,
    "docs/lab/gpt.md": gpt,
    "docs/lab/ladder.md": ladder_measured,
    "docs/lab/sharded.md": sharded,
    "docs/ladder.md": ladder,
    "docs/numerics.md": numerics,
    "docs/oneflow.md": oneflow,
    "docs/performance.md": performance,
    "docs/scale.md": scale,
    "docs/sources.md": sources,
    "docs/tensor_parallel.md": tensor_parallel,
}


def claims(page: str) -> list[Claim]:
    """Return the sentences of a page that are made from files."""
    made = list(PAGES[page]()) if page in PAGES else []
    return made + [say(text.format_map(single()), SINGLE) for text in SINGLES.get(page, ())]


# What looks like a figure on any page: versions, a paper's number, bounds such as 1.18e-38.
LIBRARY = "Python|PyTorch|CUDA|CuPy|Triton|QuACK|Liger|nvcc|driver|capability|Apache"
KINDS = (
    rf"(?:{LIBRARY}) \d+\.\d+(?:\.\d)*",
    r"arXiv \d{4}\.\d{5}",
    r"\d+(?:\.\d+)?e-\d+",
)

# Others, each with the reason. The text is that of the page with its inline code.
MODEL = (
    "the model's arithmetic, for GPUs that nobody had: tests/cpu/bench/test_scale.py has the model"
)
PARAMETER = "a number that the code has, or that a caller gives"
NO_MEASUREMENT: dict[str, dict[str, str]] = {
    "docs/bench.md": {
        "One whose input is over 1 GiB is drawn again": PARAMETER,
        "by temperature 0.8, top_k 50, top_p 0.9 and min_p 0.02": PARAMETER,
    },
    "docs/hooks.md": {"|x| < 0.8 c": PARAMETER},
    "docs/huggingface.md": {
        "The gradients of the Llama are 0.7% from PyTorch's eager ones, as Liger's are 0.9%": (
            "of one run, whose file has times and memory alone"
        ),
    },
    "docs/linear_losses.md": {"4096 rows of 128256 columns are 1.05 GB": PARAMETER},
    "docs/partial.md": {"where m is above 88.7": "the logarithm of float32's largest number"},
    "docs/lab/axes.md": {"Among costs that differ by 5% or less": PARAMETER},
    "docs/scale.md": {
        "launches beside the first, 3 us each in a graph": MODEL,
        "That takes 1.5 us.": MODEL,
        "0.5 MB at 4096 rows and 8 GPUs, 1.2 us of 380 GB/s": MODEL,
        "19.5 MB of them at once on an H200": PARAMETER,
        "Each further 19.5 MB of the shard adds 1 us.": MODEL,
        "8 us in a host, assumed 5 us more with each doubling of hosts": MODEL,
        "the bytes at 45 GB/s a GPU": MODEL,
        "at the same 1.5 us.": MODEL,
        "at 45 GB/s, 46 of softmax's 70 us.": MODEL,
        "of which a read takes 4 us. At 1048576 columns 64 GPUs are 3 to 4 times as fast": MODEL,
        "86 us by the assumptions above": MODEL,
        "of which softmax takes 6 us of memory": MODEL,
        "4096 x 1048576 are 8.6 GB": MODEL,
        "A chunk more is 4 launches more, 12 us in a graph": MODEL,
        "takes 23 us and 46 for its bytes": MODEL,
        "a GPU has 18 us of memory": MODEL,
        "they would take about 150 us and not 172": MODEL,
        "125 of the 395 us": MODEL,
        "whose launches take 240 us": MODEL,
    },
    "docs/lab/sharded.md": {
        "random delays of up to 20 us": PARAMETER,
    },
    "docs/sources.md": {"the 20% and the 80% quantile": PARAMETER},
    "docs/strategies.md": {"has grown by 2.5": PARAMETER},
    "docs/tokens.md": {
        "0.01 H.mean()": PARAMETER,
        "8 x 1024 x 151936, 2.49 GB": "the bytes of so many elements of 2 each",
        "The gradient of the logits alone takes 2.49 GB": "the same",
    },
    "docs/tuning.md": {
        "no answer for 120 s": PARAMETER,
        "it has 1800 s, and as it starts 300 s": PARAMETER,
    },
}
