"""Flat buffers for parameters and gradients, the optimizer interface, AdamW and EMA.

All parameters are views of one buffer, and all gradients are collected in a second buffer. Summing
over processes, clipping and the update then take a few calls, whatever the number of layers. If
training is in bfloat16, a float32 master copy is updated.

In two cases the trained weights are not the weights to validate and save: schedule-free AdamW, and
an exponential moving average (EMA), which works with any optimizer. `ModelOptimizer` hides the
difference: `weights` returns the weights to use, `state` everything else.

To add an optimizer, register a subclass of `Optimizer` in `OPTIMIZERS`, or a class of `torch.optim`
with `nmt.training.optimizers.from_torch`. The key ``training.optimizer.kind`` chooses an optimizer
by name. The other optimizers are in `nmt.training.optimizers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.config.training import OptimizerConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.model.transformer import Transformer, build_model, fused_rows
from nmt.registry import Registry
from nmt.text import NUM_SPECIAL

_NUM_SUMS = 2  # elements of `FlatParameters.sums`
# Parameters of a model for which the memory of a second gradient, 64 MiB, matters more than the
# start of an operation for each of its tensors.
LARGE = 1 << 24
# Prefix of the trained weights in `ModelOptimizer.state`, if they differ from the weights to use.
_TRAINED = "trained"
_AVERAGE_WARMUP = 10  # see ``ema_decay`` of `ModelOptimizer`


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a weight matrix of a layer, not an embedding matrix or a vector."""
    is_of_layer = name.startswith(("encoder.", "decoder.")) and ".positions." not in name
    return parameter.ndim == 2 and is_of_layer


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Exclude the parameters whose names begin with one of ``parts`` from training.

    Args:
        model: The model.
        parts: Prefixes of parameter names, such as ``encoder`` or ``encoder.0``.

    Raises:
        ConfigError: A prefix matches no parameter, or no parameter is left to train.
    """
    parameters = dict(model.named_parameters())
    frozen_names = set[str]()
    unknown_parts = list[str]()
    for part in parts:
        # With a dot after both, so that encoder.1 does not match encoder.10.
        names = [name for name in parameters if f"{name}.".startswith(f"{part}.")]
        frozen_names.update(names)
        if not names:
            unknown_parts.append(repr(part))
    if unknown_parts:
        problem = f"no parameter of the model begins with {', '.join(unknown_parts)}."
        roots = sorted({name.split(".")[0] for name in parameters})
        raise ConfigError(
            f"training.freeze: {problem}",
            fix=f"Use {', '.join(roots)}, or a layer, such as encoder.0.",
        )
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in frozen_names)
    if len(frozen_names) == len(parameters):
        raise ConfigError(
            "training.freeze leaves no parameter to train.",
            fix="Remove one or more parts from training.freeze.",
        )


def check_frozen(config: ModelConfig, parts: Sequence[str]) -> None:
    """Raise the errors of `freeze` for a model of a configuration, without its weights."""
    with torch.device("meta"):
        freeze(build_model(config, NUM_SPECIAL, NUM_SPECIAL), parts)


class FlatParameters:
    """Flat buffers of the parameters and gradients of ``model``.

    The parameters of the model become views of one buffer. It contains the trained matrices of the
    layers, then the other trained parameters, then the frozen parameters.

    Args:
        model: The model, already on its device.
        dtype: Dtype of the model's parameters. If it is not float32, the buffers keep a float32
            master copy and sum gradients in float32.
        frozen_dtype: Dtype of frozen matrices that another file contains (`training.lora`). They
            are converted in place, so they are held once, and are not part of the buffers. None:
            frozen parameters are kept like trained ones.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, frozen_dtype: torch.dtype | None = None
    ) -> None:
        self.working_dtype = dtype  # Dtype of the model's parameters.
        self._fused_rows = fused_rows(model)
        # Trained and frozen parameters of the buffers, by name, in the order of the buffers.
        matrices = dict[str, nn.Parameter]()
        non_matrices = dict[str, nn.Parameter]()
        self._frozen = dict[str, nn.Parameter]()
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                self._frozen[name] = parameter
            elif is_matrix(name, parameter):
                matrices[name] = parameter
            else:
                non_matrices[name] = parameter
        self._trained = matrices | non_matrices
        # Frozen parameters that another file contains, and that are not part of the buffers.
        self._outside = list[nn.Parameter]()
        if frozen_dtype is not None:
            self._outside = list(self._frozen.values())
            self._frozen = {}
            for parameter in self._outside:
                is_vector = parameter.ndim == 1  # small, and norms need the dtype of their input
                parameter.data = parameter.data.to(dtype if is_vector else frozen_dtype)
        by_name = self._trained | self._frozen
        flat = [parameter.detach().float().flatten() for parameter in by_name.values()]
        self._master = torch.cat(flat)  # float32
        self.trained_size = sum(p.numel() for p in self._trained.values())
        # Master copy of the trained parameters. (trained_size,), float32.
        self.weights = self._master[: self.trained_size]
        # `gradient` and `sums` in one buffer, so that processes sum both in one call.
        self.shared = torch.zeros(self.trained_size + _NUM_SUMS, device=self._master.device)
        # Gradient of `weights`, summed since `clear`. (trained_size,), float32.
        self.gradient = self.shared[: self.trained_size]
        # Sum of the loss, and number of batch splits: see `nmt.training.update`. (2,), float32.
        self.sums = self.shared[self.trained_size :]
        # The parameters of the model are views of this buffer. In float32 it is `_master` itself.
        self._working = self._master if dtype == torch.float32 else self._master.to(dtype)
        for name, view in _cut(self._working, by_name).items():
            by_name[name].data = view
        self._is_clear = True  # whether `gradient` is to be overwritten
        # Whether backward passes write into `gradient`.
        self._is_direct = False
        if dtype == torch.float32 and self.trained_size >= LARGE:
            self.write_directly()

    @property
    def matrix_size(self) -> int:
        """Number of elements of the trained matrices, which come first in the buffers.

        Checks this order, on which optimizers and `nmt.training.update.GradientReduction` depend.
        """
        matrices = [name for name, p in self._trained.items() if is_matrix(name, p)]
        first_names = list(self._trained)[: len(matrices)]
        assert first_names == matrices, "the matrices must come first in the flat buffers"
        return sum(self._trained[name].numel() for name in matrices)

    def write_directly(self) -> None:
        """Make backward passes write each gradient into `gradient` as soon as it is complete.

        That starts an operation for each parameter, and needs no memory for other gradients. Only
        possible with float32 parameters.
        """
        self._is_direct = True
        self.shared.zero_()
        for name, view in self.views(self.gradient).items():
            self._trained[name].grad = view

    def accumulate(self) -> None:
        """Add the gradients of a backward pass to `gradient`: the first ones in one call."""
        if self._is_direct:
            return
        gradients = dict[str, Tensor]()
        for name, parameter in self._trained.items():
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            gradients[name] = gradient
            parameter.grad = None
        if self._is_clear:
            flat_gradients = [gradient.flatten() for gradient in gradients.values()]
            torch.cat(flat_gradients, out=self.gradient)
            self._is_clear = False
            return
        for name, view in self.views(self.gradient).items():  # without another copy of all
            view.add_(gradients.pop(name))

    def clear(self) -> None:
        """Make `gradient` begin anew at the next backward pass, and set `sums` to zero."""
        if self._is_direct:
            self.shared.zero_()
            return
        for parameter in self._trained.values():
            parameter.grad = None  # set only if a backward pass has failed
        self._is_clear = True
        self.sums.zero_()

    def sync_from_master(self) -> None:
        """Copy `weights` to the parameters of the model. Call it after changing `weights`."""
        if self._working is not self._master:
            self._working.copy_(self._master)

    def load_into_model(self, values: Tensor) -> None:
        """Set the trained parameters of the model to ``values`` (trained_size,).

        In float32 this overwrites `weights`, so keep a copy of them.
        """
        self._working[: self.trained_size].copy_(values)

    @contextmanager
    def lend(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Make the model use ``weights``, in float32 and without a copy, inside the context.

        Parameters without an entry stay; frozen ones of another file are copied to float32.
        """
        by_name = self._trained | self._frozen
        parameters = [*self._outside, *by_name.values()]
        saved_data = [parameter.data for parameter in parameters]
        try:
            for name, parameter in by_name.items():
                parameter.data = weights.get(name, parameter.data)
            for parameter in self._outside:
                parameter.data = parameter.data.float()
            yield
        finally:
            for parameter, data in zip(parameters, saved_data, strict=True):
                parameter.data = data

    def views(self, flat: Tensor, begin: int = 0) -> dict[str, Tensor]:
        """Return a view for each trained parameter in a flat buffer, by name.

        Args:
            flat: Values of all trained parameters, or of a contiguous part of them. (n,).
            begin: Offset of that part in the buffer of all trained parameters.
        """
        # The first parameter begins this many elements before the part.
        return _cut(flat, self._trained, -begin)

    def matrices(self, flat: Tensor) -> list[Tensor]:
        """Return a view for each trained matrix in a flat buffer of the trained matrices.

        Fused weights, such as those of query, key and value, are split into their matrices.
        """
        matrices = list[Tensor]()
        for name, view in self.views(flat).items():
            matrices += view.split(self._fused_rows.get(name, len(view)))
        return matrices

    def frozen(self) -> dict[str, Tensor]:
        """Return a float32 view for each frozen parameter, except those of another file."""
        return _cut(self._master[self.trained_size :], self._frozen)


def _cut(flat: Tensor, parameters: Mapping[str, Tensor], start: int = 0) -> dict[str, Tensor]:
    """Return a view for each of ``parameters`` that is completely inside ``flat``, by name.

    Args:
        flat: Values of consecutive parameters.
        parameters: Parameters by name, in the order of the values.
        start: Position of the first parameter in ``flat``. Negative if it begins before ``flat``.
    """
    views = {}
    for name, parameter in parameters.items():
        stop = start + parameter.numel()
        if start >= 0 and stop <= len(flat):
            views[name] = flat[start:stop].view(parameter.shape)
        start = stop
    return views


class Optimizer:
    """Base class of optimizers on flat buffers. A subclass defines `step`.

    Args:
        parameters: Flat buffers of the model.
        config: The ``optimizer`` section.
        part: Part of the flat buffers to train.
    """

    def __init__(
        self, parameters: FlatParameters, config: OptimizerConfig, part: slice = slice(None)
    ) -> None:
        self._parameters = parameters
        self._config = config
        self._part_start = part.start or 0  # In the flat buffers.
        self._weights = parameters.weights[part]
        self._gradient = parameters.gradient[part]
        # Tensors that `state` returns and `reset` sets to zero, by name.
        self._state_tensors = dict[str, Tensor]()
        # Number of updates that were not skipped. Scalar.
        self.step_count = self._add_state("step", self._weights.new_zeros(()))

    def _add_state(self, name: str, values: Tensor) -> Tensor:
        """Add ``values``, a scalar or a buffer of the size of the trained part, to `state`."""
        self._state_tensors[name] = values
        return values

    def step(self, learning_rate: float, skipped: Tensor) -> None:
        """Update ``parameters.weights`` in place from ``parameters.gradient``.

        Args:
            learning_rate: Learning rate of this update.
            skipped: 1 to change nothing, because the gradient may contain NaN; otherwise 0. Scalar
                on the device, float32.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return views of the optimizer state, by name. Copy into them to restore a saved state.

        The name of a tensor that belongs to a parameter ends in ``/`` and the parameter's name.
        """
        state = {}
        for key, values in self._state_tensors.items():
            if values.ndim == 0:
                state[key] = values.view(1)
                continue
            for name, view in self._parameters.views(values, self._part_start).items():
                state[f"{key}/{name}"] = view
        return state

    def reset(self) -> None:
        """Reset the state, so that training starts afresh from the current weights."""
        for values in self._state_tensors.values():
            values.zero_()

    def eval_weights(self) -> Tensor | None:
        """Return the flat weights to validate and save; None if these are the trained weights."""
        return None


class AdamW(Optimizer):
    """Fused AdamW (Loshchilov and Hutter 2019). Weight decay applies to matrices only.

    Calls torch's function, because importing torch's class loads the compiler, which takes seconds.
    """

    def __init__(
        self, parameters: FlatParameters, config: OptimizerConfig, part: slice = slice(None)
    ) -> None:
        super().__init__(parameters, config, part)
        mean = self._add_state("exp_avg", torch.zeros_like(self._weights))
        square = self._add_state("exp_avg_sq", torch.zeros_like(self._weights))
        buffers = (self._weights, self._gradient, mean, square)
        num_decayed = 0
        if config.weight_decay:  # the matrices come first in the buffers
            num_decayed = max(parameters.matrix_size - self._part_start, 0)
        decayed = [buffer[:num_decayed] for buffer in buffers]
        not_decayed = [buffer[num_decayed:] for buffer in buffers]
        groups = [(decayed, config.weight_decay), (not_decayed, 0.0)]
        # Parts of the four buffers, and their weight decay: one group if nothing decays. Empty
        # groups are left out.
        self._groups = [(group, decay) for group, decay in groups if len(group[0])]

    @override
    def step(self, learning_rate: float, skipped: Tensor) -> None:
        beta1, beta2 = self._config.betas
        for number, (buffers, weight_decay) in enumerate(self._groups, start=1):
            weights, gradient, mean, square = buffers
            step_count = self.step_count
            if number < len(self._groups):
                # All groups must see the same count, but `adamw` increments it, unless the update
                # is skipped.
                step_count = step_count.clone()
            adamw(
                [weights],
                [gradient],
                [mean],
                [square],
                [],
                [step_count],
                lr=learning_rate,
                beta1=beta1,
                beta2=beta2,
                eps=self._config.epsilon,
                weight_decay=weight_decay,
                amsgrad=False,
                maximize=False,
                fused=True,
                found_inf=skipped,
            )


OptimizerConstructor = Callable[[FlatParameters, OptimizerConfig], Optimizer]
OPTIMIZERS = Registry[OptimizerConstructor]("optimizer")


def copy_tensors(tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Copy ``tensors[name]`` into ``targets[name]`` for each name of ``targets``.

    Raises:
        CheckpointError: A tensor is missing or has a different shape.
    """
    for name, target in targets.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != target.shape:
            shape = "nothing" if tensor is None else str(tuple(tensor.shape))
            needed = f"{name}, but the model needs {tuple(target.shape)}"
            raise CheckpointError(
                f"The checkpoint has {shape} for {needed}.",
                fix="Copy the model section from the config.yaml of the run.",
            )
        target.copy_(tensor)


class ModelOptimizer:
    """The configured optimizer of one model, with an optional moving average (EMA) of the weights.

    Args:
        model: The model, already on its device.
        config: The ``optimizer`` section.
        dtype: Dtype of the model's parameters during training; see `FlatParameters`.
        ema_decay: Decay of the EMA; None disables it. After t updates, the decay is at most
            (1 + t) / (10 + t), so that the initial weights soon lose their influence. With an EMA,
            validation and checkpoints use the averaged weights.
        frozen_dtype: See `FlatParameters`.

    Raises:
        ConfigError: No optimizer is registered as `kind`.
    """

    def __init__(
        self,
        model: Transformer,
        config: OptimizerConfig,
        dtype: torch.dtype,
        *,
        ema_decay: float | None = None,
        frozen_dtype: torch.dtype | None = None,
    ) -> None:
        self.parameters = FlatParameters(model, dtype, frozen_dtype)
        self._optimizer = OPTIMIZERS[config.kind](self.parameters, config)
        self._ema_decay = ema_decay
        # Moving average of the flat weights. (trained_size,), float32; None if disabled.
        self._ema = None if ema_decay is None else self.parameters.weights.clone()

    @torch.no_grad()
    def step(self, learning_rate: float, gradient_scale: Tensor | float, skipped: Tensor) -> None:
        """Update the weights, then clear the gradient. Does not wait for the device.

        Args:
            learning_rate: Learning rate of this update.
            gradient_scale: Factor on the gradient.
            skipped: 1 to change nothing, even if the gradient is not finite; 0 to update. Scalar on
                the device, float32.
        """
        not_skipped = 1 - skipped
        # If the update is skipped, this leaves only zeros and NaN.
        self.parameters.gradient.mul_(gradient_scale * not_skipped)
        self._optimizer.step(learning_rate, skipped)
        if self._ema is not None:
            num_updates = self._optimizer.step_count
            decay = (1 + num_updates) / (_AVERAGE_WARMUP + num_updates)
            share = (1 - decay.clamp(max=self._ema_decay)) * not_skipped  # of the new weights
            self._ema.lerp_(self.parameters.weights, share)
        self.parameters.clear()
        self.parameters.sync_from_master()

    def _eval_weights(self) -> Tensor | None:
        """Return the flat weights to validate and save; None if these are the trained weights."""
        if self._ema is not None:
            return self._ema
        return self._optimizer.eval_weights()

    @contextmanager
    def eval_weights(self) -> Iterator[None]:
        """Make the model use the weights to validate and save, inside the context."""
        weights = self._eval_weights()
        if weights is None:
            yield
            return
        trained = self.parameters.weights.clone()
        self.parameters.load_into_model(weights)
        try:
            yield
        finally:
            self.parameters.weights.copy_(trained)
            self.parameters.sync_from_master()

    def weights(self) -> dict[str, Tensor]:
        """Return the float32 weights to validate and save, by parameter name; views if possible."""
        flat = self._eval_weights()
        if flat is None:
            flat = self.parameters.weights
        return self.parameters.views(flat) | self.parameters.frozen()

    def state(self) -> dict[str, Tensor]:
        """Return views of all tensors other than `weights` that a resumed run needs, by name."""
        state = self._optimizer.state()
        if self._eval_weights() is not None:
            for name, view in self.parameters.views(self.parameters.weights).items():
                state[f"{_TRAINED}/{name}"] = view
        return state

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Restore `weights` and `state` from a checkpoint.

        Raises:
            CheckpointError: A tensor is missing or has a different shape, or the state belongs to
                a different kind of optimizer.
        """
        self.load_weights(weights)
        current_state = self.state()
        stored_kinds = _kinds(state)
        needed_kinds = _kinds(current_state)
        # The stored trained weights would be lost, and training would go on from other weights.
        loses_weights = _TRAINED in stored_kinds and _TRAINED not in needed_kinds
        if loses_weights or not current_state.keys() <= state.keys():
            problem = "The optimizer state of the checkpoint does not fit. "
            problem += f"Stored: {', '.join(stored_kinds) or 'nothing'}. "
            problem += f"Needed for every trained parameter: {', '.join(needed_kinds)}."
            raise CheckpointError(
                problem, fix="Copy optimizer, ema_decay and freeze from the config.yaml of the run."
            )
        copy_tensors(state, current_state)
        self.parameters.sync_from_master()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set the weights, and reset the optimizer state and the EMA.

        Raises:
            CheckpointError: A tensor is missing or has a different shape.
        """
        parameters = self.parameters
        copy_tensors(weights, parameters.views(parameters.weights) | parameters.frozen())
        parameters.sync_from_master()
        self._optimizer.reset()
        if self._ema is not None:
            self._ema.copy_(parameters.weights)


def _kinds(state: Iterable[str]) -> list[str]:
    """Return the kinds of tensors of a state, such as ``exp_avg`` for ``exp_avg/decoder...``."""
    return sorted({key.split("/")[0] for key in state})
