"""Grouped statistics: sums, means, variances and extremes of samples by group, vectorized.

Only arithmetic over an index lives here; which statistic a method needs is the method's affair.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

# Labels whose range is at most so many times their number are numbered through a table, in
# linear time; sorting them, as torch.unique does, takes most of a pipeline call.
TABLE_SLOTS_PER_LABEL = 16


class Segments:
    """A partition of M samples into K segments, in any order and of any size.

    All methods take values of shape [M] and give one value per segment, [K]; `spread` turns
    those back into [M]. Nothing loops over samples or segments.
    """

    def __init__(self, index: Tensor, count: int) -> None:
        self.index = index
        self.count = count

    @classmethod
    def of(cls, label: Tensor) -> Segments:
        """Segments from any integer labels [M]: equal labels, equal segment; none is empty."""
        if label.numel() == 0:
            return cls(label.long(), 0)
        low, high = (int(bound) for bound in label.aminmax())
        if high - low < TABLE_SLOTS_PER_LABEL * label.numel():
            return cls(label.long() - low, high - low + 1)._without_empty()
        unique, index = torch.unique(label, return_inverse=True)
        return cls(index, unique.shape[0])

    @classmethod
    def whole(cls, like: Tensor) -> Segments:
        """One segment that holds every sample of `like` [M]."""
        index = torch.zeros(like.shape[0], dtype=torch.long, device=like.device)
        return cls(index, 1)

    def within(self, label: Tensor) -> Segments:
        """The finer partition by (this segment, label): strata nested in groups."""
        inner = Segments.of(label)
        return Segments.of(self.index * max(inner.count, 1) + inner.index)

    def select(self, row: Tensor) -> Segments:
        """The partition of the samples `row` [M'] (integers) alone; emptied segments go."""
        return Segments(self.index.index_select(0, row), self.count)._without_empty()

    def keep(self, mask: Tensor) -> Segments:
        """The partition of the samples where `mask` [M] holds; emptied segments go."""
        return self if bool(mask.all()) else self.select(mask.nonzero().squeeze(1))

    def _without_empty(self) -> Segments:
        number = (torch.bincount(self.index, minlength=self.count) > 0).cumsum(0) - 1
        count = int(number[-1]) + 1 if self.count else 0
        if count == self.count:
            return self
        return Segments(number.index_select(0, self.index), count)

    @cached_property
    def size(self) -> Tensor:
        """[K] int64 members per segment."""
        return torch.bincount(self.index, minlength=self.count)

    def spread(self, value: Tensor) -> Tensor:
        """[K] -> [M]: each sample gets its segment's value."""
        if self.count == 1:
            return value.expand(self.index.shape[0])
        return value.index_select(0, self.index)

    def sum(self, value: Tensor) -> Tensor:
        """[K] sum of value by segment."""
        if self.count == 1:
            return value.sum().reshape(1)
        return value.new_zeros(self.count).index_add_(0, self.index, value)

    def mean(self, value: Tensor) -> Tensor:
        """[K] mean of value by segment."""
        return self.sum(value) / self.size

    def centered(self, value: Tensor) -> Tensor:
        """[M] value minus its segment's mean."""
        return value - self.spread(self.mean(value))

    def std(self, value: Tensor, ddof: int) -> Tensor:
        """[K] standard deviation, two-pass (centre, then square); segments with fewer than
        ddof + 1 members get 0."""
        return self.std_of_centered(self.centered(value), ddof)

    def std_of_centered(self, centered: Tensor, ddof: int) -> Tensor:
        """[K] `std` of values that are `centered` already."""
        squares = self.sum(centered.square())
        return (squares / (self.size - ddof).clamp(min=1)).sqrt() * (self.size > ddof)

    def amin(self, value: Tensor) -> Tensor:
        """[K] smallest value by segment."""
        return value.new_full((self.count,), torch.inf).scatter_reduce_(
            0, self.index, value, "amin"
        )

    def amax(self, value: Tensor) -> Tensor:
        """[K] largest value by segment."""
        return value.new_full((self.count,), -torch.inf).scatter_reduce_(
            0, self.index, value, "amax"
        )

    def any(self, condition: Tensor) -> Tensor:
        """[K] bools: `condition` [M] holds for a member."""
        if self.count == 1:
            return condition.any().reshape(1)
        found = torch.zeros(self.count, dtype=torch.int32, device=self.index.device)
        return found.index_add_(0, self.index, condition.int()) > 0

    def without_signal(self, value: Tensor) -> Tensor:
        """[K] bools: the segment's values are all equal (also: it has one member).

        Decided by equality of the values, not by the std: rounding makes the std of six times
        0.3 nonzero, and dividing by it gives advantages of order 1 out of nothing.
        """
        # whichever member the scatter leaves there: all are equal to it, or not all are equal
        member = value.new_zeros(self.count).scatter_(0, self.index, value)
        return ~self.any(value != self.spread(member))
