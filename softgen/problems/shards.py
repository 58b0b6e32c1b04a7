"""The layout of rows that several devices hold together, and the mailboxes they exchange parts by.

Templates that know them: lib/reduce/shards.cuh.j2 and lib/ptx/mail.cuh.j2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import Integer
from softgen.problems.layouts import FIRST, ROWS, Layout
from softgen.problems.operands import Extent, Operand

# Peers store into each other's memory: as many as one host has with NVLink between all.
MOST_SHARDS = 8

# A mailbox begins with a line that is the device's own: 1 + the shard that did not come, else 0.
HEAD_BYTES = 128

# Where a head has 4 bytes that kernels leave alone: an alarm for those who look there.
ALARM_OFFSET = 64

# A part has room for eight words, each with its tag: those of all kernels, which share a mailbox.
SLOT_BYTES = 64


@dataclass(frozen=True)
class Shards(Layout):
    """Rows whose columns are shared out over devices: each has a shard of every row.

    A launch on each device computes its shard. Devices exchange the parts of rows through mailboxes
    in each other's memory. Shards may have different widths: a launch knows its own alone.
    """

    label = "sharded"
    command_options = "--sharded"
    like = ROWS  # rows on one device: the same kernel but for the exchange
    sharded = True

    def numbers(self, arrays: Sequence[Operand]) -> tuple[Operand, ...]:
        """Return where the mailboxes are, which of them is the device's, and how long it waits.

        Of a function of columns by their numbers also where those of this device begin.
        """
        kind = Integer.INT64
        mailboxes = Operand("mailboxes", kind, Extent.BROADCAST, False, kind.cuda)
        first = Operand(FIRST, kind, Extent.NUMBER, False, kind.cuda)
        columns = any(o.extent is Extent.ROW and isinstance(o.dtype, Integer) for o in arrays)
        return (
            mailboxes,
            *(
                Operand(name, number, Extent.NUMBER, False, number.cuda)
                for name, number in (
                    ("mailbox", kind),
                    ("alarm", kind),
                    ("shard", Integer.INT32),
                    ("shards", Integer.INT32),
                    ("room", kind),
                    ("patience", kind),
                )
            ),
            *([first] if columns else []),
        )

    def accepts(self, number: str) -> str:
        """Return what each of them may be, in words."""
        return {
            "mailboxes": "[shards] in device memory, where each device's mailbox is",
            "mailbox": "the address of this device's",
            "alarm": "the device address of 4 bytes of mapped, pinned host memory",
            "shard": "from 0 to shards - 1, of this device",
            "shards": f"from 1 to {MOST_SHARDS}",
            "room": "rows that a mailbox has room for, and rows at least",
            "patience": "nanoseconds to wait for another device",
            FIRST: "the number of this device's first column among those of all",
        }.get(number, "")


def mailbox_bytes(shards: int, room: int) -> int:
    """Return the size of a mailbox, zero before the first launch, on a boundary of 128 bytes.

    Behind the head lies a counter of 4 bytes a row, up to a line, then two buffers of a slot for
    each row and shard. Raises InvalidValueError for more shards than a kernel takes.
    """
    if not 1 <= shards <= MOST_SHARDS:
        raise InvalidValueError(f"shards must be from 1 to {MOST_SHARDS}, got {shards}")
    if room < 1:
        raise InvalidValueError(f"a mailbox has room for 1 row at least, got room={room}")
    return HEAD_BYTES + -(-room // 32) * 128 + 2 * room * shards * SLOT_BYTES


SHARDS = Shards()
