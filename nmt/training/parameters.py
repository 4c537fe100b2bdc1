"""All parameters of a model in one flat buffer, and all gradients in another.

Clearing, summing over processes, clipping and the optimizer are then a handful of calls, however
many layers there are. Where training is in bf16, a float32 master copy is updated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from nmt.errors import CheckpointError, ConfigError
from nmt.model.transformer import fused_rows

_NUM_SUMS = 2


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix of the layers, not a table of vectors nor a vector."""
    return parameter.ndim == 2 and name.startswith(("encoder.", "decoder."))


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Keep the parameters whose names begin with one of ``parts`` as they are.

    Raises:
        ConfigError: A part names no parameter, or nothing is left to be trained.
    """
    named = dict(model.named_parameters())
    unknown = [p for p in parts if not any(_is_within(name, p) for name in named)]
    if unknown:
        there = ", ".join(sorted({name.split(".")[0] for name in named}))
        raise ConfigError(
            f"training.freeze names {', '.join(map(repr, unknown))}, but the model has no such "
            "part.",
            fix=f"Use parts such as {there}, or longer ones such as encoder.0.",
        )
    for name, parameter in named.items():
        parameter.requires_grad_(not any(_is_within(name, part) for part in parts))
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ConfigError(
            "training.freeze leaves no parameter to be trained.", fix="Name fewer parts."
        )


def _is_within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


class FlatParameters:
    """Owns the parameters of ``model``, which become views of one buffer.

    In the buffer stand the trained matrices of the layers, then the other trained parameters, then
    the frozen ones.

    Args:
        model: The model, already on its device.
        dtype: Working dtype of the parameters; if not float32, a float32 master copy is kept and
            gradients are summed in float32.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._fused_rows = fused_rows(model)
        named = list(model.named_parameters())
        trained = [(name, p) for name, p in named if p.requires_grad]
        matrices = [(name, p) for name, p in trained if is_matrix(name, p)]
        others = [(name, p) for name, p in trained if not is_matrix(name, p)]
        frozen = [(name, p) for name, p in named if not p.requires_grad]
        self._named = matrices + others + frozen
        self._num_trained = len(trained)
        self.matrix_size = sum(p.numel() for _, p in matrices)
        """Numbers in the trained matrices, which come first."""
        self.trained_size = sum(p.numel() for _, p in trained)
        """Numbers in all trained parameters."""
        self._master = torch.cat([p.detach().float().flatten() for _, p in self._named])
        self.weights = self._master[: self.trained_size]
        """The trained parameters. (trained_size,), float32."""
        self.shared = torch.zeros(self.trained_size + _NUM_SUMS, device=self._master.device)
        """`gradient`, then `sums`: one buffer, which processes add up in one call."""
        self.gradient = self.shared[: self.trained_size]
        """Their gradient, summed since `clear`. (trained_size,), float32."""
        self.sums = self.shared[self.trained_size :]
        """The objective, and how often batches were halved: see `nmt.training.update`. (2,)."""
        if dtype == torch.float32:
            self._working, self._working_gradient = self._master, self.gradient
        else:
            self._working = self._master.to(dtype)
            self._working_gradient = torch.zeros_like(self._working[: self.trained_size])
        start = 0
        for _, parameter in self._named:
            stop = start + parameter.numel()
            parameter.data = self._working[start:stop].view(parameter.shape)
            if parameter.requires_grad:
                parameter.grad = self._working_gradient[start:stop].view(parameter.shape)
            start = stop

    def accumulate(self) -> None:
        """Call after each backward: takes the gradients of the working dtype over."""
        if self._working_gradient is not self.gradient:
            self.gradient += self._working_gradient
            self._working_gradient.zero_()

    def clear(self) -> None:
        """Forget the gradient and the sums."""
        self.shared.zero_()
        if self._working_gradient is not self.gradient:
            self._working_gradient.zero_()

    def sync_from_master(self) -> None:
        """Call after `weights` were changed: copies them to the model's parameters."""
        if self._working is not self._master:
            self._working.copy_(self._master)

    def load_into_model(self, values: Tensor) -> None:
        """Give the model ``values`` as weights. In float32 they replace `weights`: keep a copy."""
        self._working[: self.trained_size].copy_(values)

    def views(self, flat: Tensor, begin: int = 0) -> Iterator[tuple[str, Tensor]]:
        """Cut a flat buffer of trained parameters up by their names: views, not copies.

        Args:
            flat: As long as all trained parameters, or as some that follow each other.
            begin: Where in the whole buffer the first of them stands.
        """
        start = -begin
        for name, parameter in self._named[: self._num_trained]:
            stop = start + parameter.numel()
            if start >= 0 and stop <= len(flat):
                yield name, flat[start:stop].view(parameter.shape)
            start = stop

    def matrices(self, flat: Tensor) -> list[Tensor]:
        """Cut a flat buffer of the trained matrices into one view for each matrix.

        Weights that hold several matrices one above the other are cut apart.
        """
        return [
            block
            for name, matrix in self.views(flat)
            for block in matrix.split(self._fused_rows.get(name, len(matrix)))
        ]

    def frozen(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters that are not trained, in float32: views."""
        start = self.trained_size
        for name, parameter in self._named[self._num_trained :]:
            stop = start + parameter.numel()
            yield name, self._master[start:stop].view(parameter.shape)
            start = stop


def copy_tensors(
    tensors: Mapping[str, Tensor], places: Iterator[tuple[str, Tensor]], prefix: str = ""
) -> None:
    """Copy ``tensors[prefix + name]`` into each of the named ``places``.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    for name, place in places:
        found = tensors.get(prefix + name)
        if found is None or found.shape != place.shape:
            shape = "nothing" if found is None else str(tuple(found.shape))
            raise CheckpointError(
                f"The checkpoint has {shape} for {prefix + name}, "
                f"but the model needs {tuple(place.shape)}.",
                fix="Resume with the model section of the run's own config.yaml.",
            )
        place.copy_(found)
