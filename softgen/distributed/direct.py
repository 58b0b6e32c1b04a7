"""The direct exchange: one kernel, whose blocks store parts of rows into each other's memory."""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from softgen.devices.gpu.compile import compile_source
from softgen.distributed import local, tuned
from softgen.distributed.exchange import Collective
from softgen.distributed.mailboxes import Mailboxes, patience_of
from softgen.errors import CaptureError, IllegalVariantError, InvalidValueError
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem, rows_bucket
from softgen.problems.shards import MOST_SHARDS, SHARDS
from softgen.source.render import render
from softgen.torch.dtypes import wide

# A mailbox has 128 bytes a row and process: of 8 processes 64 MiB.
MOST_ROWS = 65536

_MOST_LAUNCHES = 256

# Kernels load 16 bytes at once where rows start on them.
_BOUNDARY = 16

# Where a shard has more bytes than this, a function that writes no elements takes two kernels. One
# would keep its blocks waiting for other GPUs: bfloat16 4096 x 64128 took 191 us on two H200s
# so, and a read alone 127.
TWO_KERNELS = 32 << 20

# The first column of a process without columns: no target is one of its own.
_NO_COLUMN = 2**63 - 1


class Direct:
    """Parts of rows through mailboxes in symmetric memory, for groups without an `obstacle`.

    Whether a call goes through them depends on what is the same in all processes: its rows, and
    what they found at the first call with about so many (`tuned.py`). Each launches a kernel for
    its own number of columns. Where no kernel holds so many in registers, and where two are faster,
    one kernel finds the parts of rows, and another, of one column a row, sends them.

    Attributes:
        size: how many processes it has.
    """

    def __init__(self, group: Any) -> None:
        # An exchange is kept as long as its group, and must not keep it.
        self._group = weakref.ref(group)
        self.size: int = dist.get_world_size(group)
        self._mailboxes: Mailboxes | None = None
        self._kernels: dict[Any, Any] = {}
        self._launches: dict[Any, Any] = {}
        self._gathers: dict[Any, bool] = {}  # by what all processes know

    @property
    def group(self) -> Any:
        """The process group."""
        return self._group()

    @property
    def collective(self) -> Collective:
        """What the rest goes through."""
        return Collective(self.group)

    def softmax(self, x: Any, dtype: Any, log: bool = False) -> Any:
        """Return this shard of the softmax, or its logarithm; see Gathered."""
        function = "log_softmax" if log else "softmax"

        def direct(x: Any) -> Any:
            found = self._launch(function, x, dtype)
            if found is not None:
                return found[0] if x.shape[-1] else torch.empty_like(x, dtype=dtype)
            m, d = local.partial(x, None)
            m, d = self._must("merge", m[..., None], m.dtype, (d[..., None],))
            return local.finished(x, m, d, log, dtype)

        def gather(x: Any) -> Any:
            return self.collective.softmax(x, dtype, log)

        return self._chosen(function, x, dtype, direct, gather, writes_elements=True)

    def logsumexp(self, x: Any) -> Any:
        """Return lse of the rows; see Gathered."""

        def direct(x: Any) -> Any:
            found = self._at_once("logsumexp", x, wide(x))
            if found is None:  # a row of one column, which is lse of the shard
                found = self._must("logsumexp", local.logsumexp(x)[..., None], wide(x))
            return found[0]

        return self._chosen("logsumexp", x, wide(x), direct, lambda x: self.collective.logsumexp(x))

    def losses(
        self, x: Any, target: Any, first: int, ignored: int, z_loss: float
    ) -> tuple[Any, Any]:
        """Return the losses and lse; see Gathered."""
        kind = "" if target.dtype is torch.int64 else "_i32"
        target = target.contiguous()
        rest = (target, ignored, z_loss)

        def direct(x: Any) -> tuple[Any, Any]:
            found = self._at_once(f"cross_entropy{kind}", x, x.dtype, rest, first)
            if found is None:
                m, d, logits = local.partial_target(x, target, first, ignored)
                more = (d[..., None], logits, *rest)
                found = self._must(f"merge_losses{kind}", m[..., None], m.dtype, more, 0)
            loss, lse = found
            return loss, lse

        def gather(x: Any) -> tuple[Any, Any]:
            return self.collective.losses(x, target, first, ignored, z_loss)

        found: tuple[Any, Any] = self._chosen(f"cross_entropy{kind}", x, x.dtype, direct, gather)
        return found

    def pairs(self, x: Any, scale: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the pairs and the chosen elements of the rows; see Gathered."""
        return self.collective.pairs(x, scale, chosen)

    def entropy(self, x: Any, scale: Any, chosen: Any = None) -> tuple[Any, Any, Any]:
        """Return the entropy, lse and the chosen elements of the rows; see Gathered."""
        return self.collective.entropy(x, scale, chosen)

    def total(self, sums: Any) -> Any:
        """Return the sums over the processes; see Gathered."""
        return self.collective.total(sums)

    def first_column(self, given: int, x: Any) -> int:
        """Return the number of the shard's first column; see Gathered."""
        return self.collective.first_column(given, x)

    def all_columns(self, given: int, x: Any) -> int:
        """Return how many columns all processes have; see Gathered."""
        return self.collective.all_columns(given, x)

    def _chosen(
        self,
        function: str,
        x: Any,
        dtype: Any,
        direct: Callable[[Any], Any],
        gather: Callable[[Any], Any],
        writes_elements: bool = False,
    ) -> Any:
        """Return direct(x) or gather(x), the same one in all processes."""
        rows = x.shape[:-1].numel()
        if self.size == 1 or not 1 <= rows <= MOST_ROWS:
            return gather(x)
        with on(x):
            known = (function, x.dtype, dtype, rows_bucket(rows))
            gathers = self._gathers.get(known)
            if gathers is None:
                self._require_no_capture("the kernel is not chosen yet")
                shape = (max(1, x.shape[-1]), rows, x.device.index)
                holds = x.shape[-1] and (writes_elements or not self._takes_two(x))
                problem = _problem_of(function, x.dtype, dtype, *shape) if holds else None

                def use(kernel: Any) -> None:
                    key = (*known[:3], shape[0], known[3], shape[2])
                    self._kernels.pop(key, None)
                    if kernel is not None:
                        self._kernels[key] = kernel
                    self._launches.pop((*known[:3], *shape), None)
                    self._launcher(*known[:3], *shape)

                def send(x: Any) -> Any:
                    return self.collective.gather(x.new_zeros((2, rows), dtype=wide(x)))

                calls = (use, direct, gather, send)
                passes = 3 if writes_elements else 1
                asked = tuned.Asked(self.group, x, rows, problem, *calls, passes)
                gathers = self._gathers[known] = tuned.gathers(asked)
            return (gather if gathers else direct)(x)

    @staticmethod
    def _takes_two(x: Any) -> bool:
        """Return whether two kernels are faster than one for what writes no element."""
        return bool(x.numel() * x.element_size() > TWO_KERNELS)

    def _at_once(self, function: str, x: Any, *request: Any) -> list[Any] | None:
        """Return the results of a row each where one kernel is faster than two, or None."""
        return None if self._takes_two(x) else self._launch(function, x, *request)

    def _must(self, *request: Any) -> Any:
        """Return the results of a row of one column, which every GPU holds."""
        found = self._launch(*request)
        assert found is not None, request[0]
        return found

    def _launch(
        self,
        function: str,
        x: Any,
        dtype: Any,
        rest: Sequence[Any] = (),
        first: int | None = None,
    ) -> list[Any] | None:
        """Return the results, or None where no kernel holds this shard.

        Args:
            function: its name.
            x: the shard. One without columns goes as a column of -inf: its part is (-inf, 0).
            dtype: of the result that has a type of its own.
            rest: the inputs beside x, contiguous, in the order of the operands.
            first: the number of the shard's first column, for a function that takes it.
        """
        shape, source = x.shape[:-1], x.contiguous()
        if not x.shape[-1]:
            source = x.new_full((*shape, 1), -torch.inf)
            first = None if first is None else _NO_COLUMN
        elif source.data_ptr() % _BOUNDARY:
            source = source.clone()
        rows, device = shape.numel(), x.device
        shape_of_source = (source.shape[-1], rows, device.index)
        launch, results, numbers = self._launcher(function, x.dtype, dtype, *shape_of_source)
        if launch is None:
            return None
        found = [
            torch.empty(source.shape if wide_as_x else shape, dtype=kind, device=device)
            for wide_as_x, kind in results
        ]
        mailboxes = self._with_room(rows, device)
        mailboxes.require_all()
        stream = torch._C._cuda_getCurrentRawStream(device.index)  # without an object, 4 us
        mailboxes.order(stream)
        words = [source.data_ptr()]
        for given, number in zip(rest, numbers, strict=True):
            words.append(given.data_ptr() if number is None else number(given))
        words += [each.data_ptr() for each in found]
        words += mailboxes.words
        if first is not None:
            words.append(first)
        launch(words, stream)
        return found

    def _launcher(self, *key: Any) -> tuple[Any, Any, Any]:
        """Return the launch or None, the kind of each result, and what turns inputs into words.

        The key is the function, the types of x and of the result, columns, rows, and the GPU.
        """
        found = self._launches.get(key)
        if found is None:
            if len(self._launches) >= _MOST_LAUNCHES:
                self._launches.clear()
            *rest, rows, device = key
            kernel = self._kernel(*rest, rows_bucket(rows), device)
            if kernel is None:
                found = (None, (), ())
            else:
                problem = kernel.variant.problem
                results = [
                    (operand.extent is Extent.ELEMENT, getattr(torch, operand.dtype.value))
                    for operand in problem.results
                ]
                numbers = [
                    operand.word if operand.extent is Extent.NUMBER else None
                    for operand in problem.inputs[1:]
                ]
                found = (kernel.launcher(rows), results, numbers)
            self._launches[key] = found
        return found

    def _kernel(self, *key: Any) -> Any:
        """Return the kernel, loaded; None where its rows do not fit the registers."""
        if key not in self._kernels:
            self._require_no_capture("the kernel is not loaded yet")
            problem, (rows, device) = _problem_of(*key), key[-2:]
            kernel = None
            if problem is not None:
                kernel = compile_source(render(tuned.choice(problem, rows, device, self.size)))
            self._kernels[key] = kernel
        return self._kernels[key]

    def _with_room(self, rows: int, device: Any) -> Mailboxes:
        if self._mailboxes is None or self._mailboxes.room < rows:
            self._require_no_capture("there are no mailboxes for so many rows yet")
            room = rows_bucket(max(rows, 1024))
            self._mailboxes = Mailboxes(self.group, device, room, patience_of(self.group))
            dist.barrier(self.group)  # nobody writes into a mailbox that is not clear yet
        return self._mailboxes

    @staticmethod
    def _require_no_capture(why: str) -> None:
        """Raise CaptureError while the stream is captured."""
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                f"{why}, and cannot be while a stream is captured; call once before with these rows"
            )


def _problem_of(
    function: str, dtype: Any, out_dtype: Any, cols: int, rows: int, device: int
) -> Problem | None:
    """Return what the kernel of a shard computes; None where its rows do not fit the registers."""
    problem = Problem.of(function, dtype, cols, out_dtype=out_dtype, layout=SHARDS)
    try:
        tuned.guess(problem, rows, device)
    except (IllegalVariantError, InvalidValueError):
        return None
    return problem


def on(x: Any) -> Any:
    """Return a context in which x's GPU is the current one; where it is, that costs nothing."""
    here = torch.cuda.current_device() == x.device.index
    return contextlib.nullcontext() if here else torch.cuda.device(x.device)


def obstacle(group: Any, unwilling: str) -> str:
    """Return why the processes of a group cannot exchange directly, or ""; all have to ask.

    They can where each wants to, on GPUs of one host, one each, that have the same numbers in all
    and access each other's memory, where PyTorch has symmetric memory and the system lets it share
    memory between processes. The answer is the same in all.

    Args:
        group: the process group.
        unwilling: why this process does not want to, or "".
    """
    size = dist.get_world_size(group)
    if not 1 < size <= MOST_SHARDS:
        return f"kernels exchange rows of 2 to {MOST_SHARDS} GPUs, and these are {size}"
    gpu = torch.cuda.current_device()
    here = [_uuid(i) for i in range(torch.cuda.device_count())]
    facts = _from_all((_host(), gpu, here[gpu], unwilling), group)
    hosts, gpus, uuids, complaints = zip(*facts, strict=True)
    if any(complaints):
        return str(next(filter(None, complaints)))
    if len(set(hosts)) > 1:
        return "they are on several hosts"
    if len(set(uuids)) < size:
        return "two of them have one GPU"
    said = ""
    if any(here[i : i + 1] != [uuid] for i, uuid in zip(gpus, uuids, strict=True)):
        said = (
            "they do not see the same GPUs (CUDA_VISIBLE_DEVICES); let each process see all of "
            "them, and take its own by torch.cuda.set_device()"
        )
    elif not all(gpu == i or torch.cuda.can_device_access_peer(gpu, i) for i in gpus):
        said = "not every GPU can access the memory of the others"
    found = _from_all(said, group)
    if not any(found):
        try:
            Mailboxes(group, torch.device("cuda", gpu), 1, 1.0)
        # As in an old PyTorch, and where a container forbids what shares memory.
        except (AttributeError, ImportError, RuntimeError) as error:
            said = f"symmetric memory failed: {error}"
        found = _from_all(said, group)
    return next(filter(None, found), "")


def _from_all(mine: Any, group: Any) -> list[Any]:
    """Return what each process of a group says."""
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group=group)
    return every


def _uuid(gpu: int) -> str:
    """Return what tells a GPU from all others, whatever its number is here."""
    return str(torch.cuda.get_device_properties(gpu).uuid)


def _host() -> str:
    """Return what tells this boot of this host from others."""
    name = socket.gethostname()
    try:
        return f"{name} {Path('/proc/sys/kernel/random/boot_id').read_text()}"
    except OSError:
        return name
