"""DTensors as shards: the part of one that lies here, and results that are placed like it."""

from __future__ import annotations

from typing import Any, NamedTuple

from softgen.distributed.gathered import offset_of
from softgen.errors import InvalidValueError, NotSupportedError
from softgen.torch.dtensor import is_dtensor, shard_dim, whole


class Sharded(NamedTuple):
    """A shard, and where it comes from.

    Attributes:
        x: the tensor of this process.
        group: the processes that have the other columns; None is all.
        source: the DTensor; None for a tensor.
        along: the dimension of its mesh that the columns are sharded over.
        offset: the number of the first column here; None where only the processes can tell.
    """

    x: Any
    group: Any
    source: Any = None
    along: int = 0
    offset: int | None = None

    @classmethod
    def of(cls, x: Any, group: Any, dim: int = -1) -> Sharded:
        """Return the shard of a DTensor, or a tensor as it is.

        Args:
            x: the one or the other.
            group: that of a tensor.
            dim: along which columns lie: the last dimension, or the first one of a weight.

        Raises NotSupportedError for a DTensor that is not sharded along it over one dimension of
        its mesh, and InvalidValueError for a group beside a DTensor.
        """
        if not is_dtensor(x):
            return cls(x, group)
        if group is not None:
            raise InvalidValueError("a DTensor has a group of its own; leave group= out")
        mesh, at = x.device_mesh, dim % max(1, x.dim())
        along = [i for i, each in enumerate(x.placements) if shard_dim(each, x.dim()) == at]
        if len(along) != 1 or any(each.is_partial() for each in x.placements):
            name = "last" if dim < 0 else "first"
            raise NotSupportedError(
                f"the {name} dimension of a DTensor must be sharded over one dimension of its "
                f"mesh, got {tuple(x.placements)}; redistribute it, or take softgen.torch of a "
                "DTensor that is not sharded there"
            )
        every, size = x.shape[at], mesh.size(along[0])
        offset = min(every, mesh.get_coordinate()[along[0]] * -(-every // size))
        return cls(x.to_local(), mesh.get_group(along[0]), x, along[0], offset)

    def first(self, offset: Any) -> int:
        """Return the number of the shard's first column; -1 where the processes have to ask."""
        if offset is not None:
            return offset_of(offset)
        return -1 if self.offset is None else self.offset

    def shards_rows(self) -> bool:
        """Whether another dimension of the mesh shards the rows.

        No property, as PyTorch 2.7 traces none of a tuple.
        """
        return self.source is not None and any(
            i != self.along and each.is_shard() for i, each in enumerate(self.source.placements)
        )

    def elements(self, y: Any) -> Any:
        """Return a result of the shard's shape, placed as x is."""
        x = self.source
        return y if x is None else whole(y, x.device_mesh, x.placements, x.shape)

    def rows(self, found: Any) -> Any:
        """Return a result of each row, or one for all rows, which is the same in the group."""
        x = self.source
        if x is None:
            return found
        shape = (*x.shape[:-1], *found.shape[x.dim() - 1 :]) if found.dim() else ()
        return whole(found, x.device_mesh, self._of_rows(), shape)

    def like_rows(self, given: Any) -> Any:
        """Return the part of a DTensor that belongs to the rows here, or a tensor as it is."""
        if self.source is None or not is_dtensor(given):
            return given
        return given.redistribute(self.source.device_mesh, self._of_rows()).to_local()

    def _of_rows(self) -> list[Any]:
        """Return the placements of a result of each row."""
        from torch.distributed.tensor import Replicate

        placements = list(self.source.placements)
        placements[self.along] = Replicate()
        return placements
