"""What a model consists of: `parameters`, `diagram`, and the tensors of one pass (`shapes`)."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from nmt.extras.inspection.diagram import stack_diagram
from nmt.extras.inspection.figure import Part, Table
from nmt.extras.inspection.parameters import count_parts
from nmt.extras.inspection.subject import Subject
from nmt.model.transformer import Transformer
from nmt.packed import Packed

_INDENT = "\N{NO-BREAK SPACE}" * 3
# Name of a tensor, shape, dtype, mean and standard deviation; None for ids.
TensorRow = tuple[str, str, str, float | None, float | None]


def parameters(subject: Subject) -> Part:
    """Show the arithmetic of all parameters."""
    explanation = (
        "What training adjusts, counted: a matrix has as many parameters as its product of sizes, "
        "and biases and norms add a vector each. A formula under a layer is of one copy. Tables "
        "that several places share count once."
    )
    table = parameter_table(subject.structure, "Parameters")
    return Part("parameters", "Parameters", explanation, [table])


def parameter_table(model: Transformer, title: str) -> Table:
    """Return formula, count, copies and share of each part of a model."""
    parts = count_parts(model)
    total = parts[-1].count
    rows = [
        (_INDENT * part.depth + part.name, part.arithmetic, part.count, part.copies,
         f"{part.count * part.copies / total:.1%}")
        for part in parts
    ]  # fmt: skip
    head = ("part", "formula", "parameters", "copies", "share of all")
    return Table(title, head, rows, f"{4 * total:,} bytes in float32.", total=True)


def diagram(subject: Subject) -> Part:
    """Draw the stacks of a configuration."""
    explanation = (
        "The encoder turns the source into its memory; the decoder reads the target so far, and in "
        "every layer the memory. An add box sums what a sub-layer gives with what went into it: "
        "the residual connection. The top layer of each stack has the highest number."
    )
    drawn = stack_diagram(subject.config.model, subject.vocab_sizes)
    return Part("diagram", "Architecture", explanation, [drawn])


def shapes(subject: Subject) -> Part:
    """Show the tensors of one pass over the sentence and its translation."""
    rows = trace_tensors(subject.model, subject.source, subject.target, subject.choice.layer)
    explanation = (
        "What the modules gave out in one pass, in the order in which they finished. "
        f"{subject.source.num_tokens} tokens of the source are read and "
        f"{subject.target.num_tokens} of the target, without padding: the first size. Spread is "
        "the standard deviation of all numbers of a tensor."
    )
    head = ("tensor", "shape", "dtype", "mean", "spread")
    return Part("shapes", "Tensors", explanation, [Table("Tensors of one pass", head, rows)])


def trace_tensors(
    model: Transformer, source: Packed, target: Packed, layer: int | None = None
) -> list[TensorRow]:
    """Run a model once, and return what each of its modules gave out, then the logits.

    Args:
        model: In evaluation mode.
        source: Source ids.
        target: BOS and target ids.
        layer: Look only into this layer of each stack, from 1; into all if None.
    """
    found = [_summary("source ids", source.ids), _summary("target ids", target.ids)]

    def note(name: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        found.append(_summary(name, output))

    with ExitStack() as handles, torch.inference_mode():
        for path, module in model.named_modules():
            if (name := _label(path, layer)) and not isinstance(module, nn.Identity):
                handles.enter_context(module.register_forward_hook(partial(note, name)))
        found.append(_summary("logits", model.logits(model(source, target))))
    return found


def _label(path: str, layer: int | None) -> str:
    """Return what a module's output is called; empty for those that are not shown."""
    stack, _, rest = path.partition(".")
    if not rest:
        return path.replace("_", " ") or "decoder output"
    number, _, inner = rest.partition(".")
    if not number.isdecimal() or layer not in (None, int(number) + 1):
        return ""
    name = inner.replace("_", " ").replace(".", ", ")
    return f"{stack} layer {int(number) + 1}" + (f": {name}" if name else "")


def _summary(name: str, tensor: Tensor) -> TensorRow:
    shape, dtype = str(tuple(tensor.shape)), str(tensor.dtype).removeprefix("torch.")
    if not tensor.is_floating_point():
        return name, shape, dtype, None, None
    spread, mean = torch.std_mean(tensor, correction=0)
    return name, shape, dtype, mean.item(), spread.item()
