"""Counts the operators that the host starts, by cause, from a profile of torch.

An operator counts where Python or autograd starts it; what it starts itself belongs to it. Views
and allocations do not count, and operators that only call others count as what they call.
An operator in the backward pass has the cause of the operator whose gradient it computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile, record_function

# They compute nothing themselves, though some of them call an operator that does.
VIEWS = """alias as_strided chunk detach detach_ expand expand_as flatten mT movedim narrow permute
    reshape select slice split split_with_sizes squeeze t transpose unbind unflatten unfold
    unsqueeze view view_as _reshape_alias _unsafe_view"""
ALLOCATIONS = "empty empty_like empty_strided lift_fresh new_empty resize_"
CALLERS = "contiguous dropout einsum linear matmul scaled_dot_product_attention to type_as"
PASSIVE = frozenset(f"{VIEWS} {ALLOCATIONS} {CALLERS} is_nonzero resolve_conj".split())
_MARK = "cause: "
_NODE = "autograd::engine::evaluate_function: "
_GRADIENTS = "gradients of parameters"


class Causes:
    """Functions whose operators are counted under a name; the innermost function counts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def name(self, owner: Any, function: str, cause: str) -> None:
        """Count what ``owner.function`` starts under ``cause``."""
        original: Callable[..., Any] = vars(owner)[function]

        @wraps(original)
        def marked(*arguments: Any, **options: Any) -> Any:
            with record_function(_MARK + cause):
                return original(*arguments, **options)

        self._patch.setattr(owner, function, marked)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the operators inside of the context, by cause. Filled when it ends."""
    counts = Counter[str]()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield counts
    roots = [event for event in profiler.events() if event.cpu_parent is None]
    causes = dict[int, str]()  # of operators, by the number that their gradient's node has, too
    for event in roots:
        _learn(event, "other", causes)
    for event in roots:
        _count(event, "other", causes, counts)


def _learn(event: Any, cause: str, causes: dict[int, str]) -> None:
    if event.name.startswith(_NODE):
        return
    cause = _cause(event, cause)
    if event.sequence_nr >= 0:
        causes[event.sequence_nr] = cause
    for child in event.cpu_children:
        _learn(child, cause, causes)


def _count(event: Any, cause: str, causes: Mapping[int, str], counts: Counter[str]) -> None:
    cause = _cause(event, cause)
    if event.name.startswith(_NODE):
        cause = _GRADIENTS
        if "AccumulateGrad" not in event.name:
            cause = f"{causes.get(event.sequence_nr, 'other')}, backward"
    kind, _, name = event.name.partition("::")
    if kind == "aten" and name not in PASSIVE:
        counts[cause] += 1
        return
    for child in event.cpu_children:
        _count(child, cause, causes, counts)


def _cause(event: Any, cause: str) -> str:
    return event.name.removeprefix(_MARK) if event.name.startswith(_MARK) else cause


def table(counts: Mapping[str, int]) -> str:
    """Return the counts as text, largest first."""
    rows: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda row: -row[1])
    lines = [f"{number:6,} {cause}" for cause, number in rows]
    return "\n".join([*lines, f"{sum(counts.values()):6,} in total"])
