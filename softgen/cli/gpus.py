"""`softgen tune --gpus`: which GPUs of this machine tune."""

from __future__ import annotations

import re

import typer

from softgen.cli import output
from softgen.cli.shard import Shard
from softgen.errors import InvalidValueError
from softgen.problems.arch import Arch

ALL = "all"


def parse_gpus(text: str | None) -> list[int] | None:
    """Return numbers of GPUs, in order and each once; none for "all", None where nothing is said.

    Raises BadParameter for anything else.
    """
    if text is None:
        return None
    if text.strip() == ALL:
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d{1,4}", word) for word in words):
        raise typer.BadParameter(
            f"--gpus: {text!r} names no GPUs; write all, or their numbers, for example 0,1"
        )
    return sorted({int(word) for word in words})


def resolve_gpus(asked: list[int]) -> list[int]:
    """Return the GPUs that are asked for, all of this machine if none is named.

    Raises InvalidValueError if one is not there, or they differ: a choice is one model's.
    """
    from softgen.devices.gpu import device

    count = device.count()
    found = asked or list(range(count))
    missing = [number for number in found if number >= count]
    if missing:
        numbers = "GPU 0" if count == 1 else f"GPUs 0 to {count - 1}"
        raise InvalidValueError(
            f"--gpus: there is no GPU {missing[0]} here; CUDA sees {output.count(count, 'GPU')}, "
            f"{numbers} (CUDA_VISIBLE_DEVICES chooses them)"
        )
    models: dict[Arch, list[str]] = {}
    for number in found:
        models.setdefault(device.arch_of(number), []).append(str(number))
    if len(models) > 1:
        there = {model: ",".join(each) for model, each in models.items()}
        raise InvalidValueError(
            "--gpus: a choice is for one model of GPU, and these are "
            + " and ".join(
                f"{model.device} with {model.multiprocessors} SMs ({each})"
                for model, each in there.items()
            )
            + "; tune on each alone: "
            + ", then ".join(f"--gpus {each}" for each in there.values())
        )
    return found


def gpu_of(part: Shard | None) -> list[int]:
    """Return the GPU of a process that a launcher began beside others; none for the current."""
    if part is None or part.local is None:
        return []
    from softgen.devices.gpu import device

    count = device.count()
    if count == 1:  # the launcher has given it one
        return []
    if part.local >= count:
        raise InvalidValueError(
            f"this is process {part.local} of this machine by its launcher, and CUDA sees "
            f"{output.count(count, 'GPU')}; start as many processes as GPUs, or say --gpus"
        )
    return [part.local]
