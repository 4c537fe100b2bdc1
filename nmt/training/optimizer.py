"""All parameters of a model in one flat buffer, their gradients in another, and what changes them.

Clearing, summing over processes, clipping and the optimizer are then a handful of calls, however
many layers there are. Where training is in bf16, a float32 master copy is updated.

Most optimizers train the weights that are then used. Two ways do not: schedule-free AdamW trains at
one point and uses another, and an exponential moving average (EMA) may be kept beside any
optimizer. `ModelOptimizer` hides the difference: `weights` are the ones to use and save, `state`
is the rest.

To add an optimizer, register a subclass of `Optimizer` in `OPTIMIZERS`, or any class of
`torch.optim` by `nmt.training.optimizers.from_torch`; the key ``training.optimizer.kind`` chooses
by name. AdamW, the default, is here; the others are in `nmt.training.optimizers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from typing_extensions import override

from nmt.config.training import OptimizerConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.model.transformer import Transformer, fused_rows
from nmt.registry import Registry

_NUM_SUMS = 2
# Prefix of the trained weights in `ModelOptimizer.state`, where others are to be used.
_TRAINED = "trained"
_AVERAGE_WARMUP = 10


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix of the layers, not an embedding matrix or a vector."""
    of_layers = name.startswith(("encoder.", "decoder.")) and ".positions." not in name
    return parameter.ndim == 2 and of_layers


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Keep the parameters whose names begin with one of ``parts`` as they are.

    Raises:
        ConfigError: A part names no parameter, or nothing is left to be trained.
    """
    named = dict(model.named_parameters())
    frozen = {part: [name for name in named if f"{name}.".startswith(f"{part}.")] for part in parts}
    if unknown := [part for part, names in frozen.items() if not names]:
        there = ", ".join(sorted({name.split(".")[0] for name in named}))
        problem = f"the model has no such part as {', '.join(map(repr, unknown))}."
        fix = f"Use parts such as {there}, or longer ones such as encoder.0."
        raise ConfigError(f"training.freeze: {problem}", fix=fix)
    for name, parameter in named.items():
        parameter.requires_grad_(not any(name in names for names in frozen.values()))
    if not any(parameter.requires_grad for parameter in named.values()):
        problem = "training.freeze leaves no parameter to be trained."
        raise ConfigError(problem, fix="Name fewer parts.")


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
        self.working_dtype = dtype  # Of the parameters of the model.
        self._fused_rows = fused_rows(model)
        named = list(model.named_parameters())
        trained = [(name, p) for name, p in named if p.requires_grad]
        self._trained = sorted(trained, key=lambda item: not is_matrix(*item))
        self._frozen = [(name, p) for name, p in named if not p.requires_grad]
        # Numbers in the trained matrices, which come first.
        self.matrix_size = sum(p.numel() for name, p in trained if is_matrix(name, p))
        self.trained_size = sum(p.numel() for _, p in trained)  # Numbers in all trained parameters.
        every = self._trained + self._frozen
        self._master = torch.cat([p.detach().float().flatten() for _, p in every])
        # The trained parameters. (trained_size,), float32.
        self.weights = self._master[: self.trained_size]
        # `gradient`, then `sums`: one buffer, which processes add up in one call.
        self.shared = torch.zeros(self.trained_size + _NUM_SUMS, device=self._master.device)
        # Their gradient, summed since `clear`. (trained_size,), float32.
        self.gradient = self.shared[: self.trained_size]
        # The objective, and how often batches were halved: see `nmt.training.update`. (2,).
        self.sums = self.shared[self.trained_size :]
        self._working = self._master if dtype == torch.float32 else self._master.to(dtype)
        for (_, parameter), (_, view) in zip(every, _cut(self._working, every), strict=True):
            parameter.data = view
        self._unwritten: dict[nn.Parameter, Tensor] = {}
        self._gradients = {model.get_parameter(n): view for n, view in self.views(self.gradient)}
        for parameter, view in self._gradients.items():
            if dtype == torch.float32:
                parameter.grad = view
            else:
                parameter.register_post_accumulate_grad_hook(self._take)
        self.clear()

    def _take(self, parameter: nn.Parameter) -> None:
        """Move a gradient of the working dtype: the first one is written, others are added."""
        assert parameter.grad is not None
        if (view := self._unwritten.pop(parameter, None)) is not None:
            view.copy_(parameter.grad)
        else:
            self._gradients[parameter].add_(parameter.grad)
        parameter.grad = None

    def accumulate(self) -> None:
        """Call after each backward: from then on `gradient` is the sum since `clear`."""
        for view in self._unwritten.values():
            view.zero_()
        self._unwritten.clear()

    def clear(self) -> None:
        """Forget the gradient and the sums."""
        if self._working is self._master:
            self.shared.zero_()
        else:
            self._unwritten = dict(self._gradients)
            self.sums.zero_()

    def sync_from_master(self) -> None:
        """Call after `weights` were changed: copies them to the model's parameters."""
        if self._working is not self._master:
            self._working.copy_(self._master)

    def load_into_model(self, values: Tensor) -> None:
        """Give the model ``values`` as weights. In float32 they replace `weights`: keep a copy."""
        self._working[: self.trained_size].copy_(values)

    @contextmanager
    def lend(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Have the model use ``weights`` themselves, in their dtype, while the context is open."""
        own = [(parameter, parameter.data) for _, parameter in self._trained + self._frozen]
        try:
            for name, parameter in self._trained + self._frozen:
                parameter.data = weights[name]
            yield
        finally:
            for parameter, data in own:
                parameter.data = data

    def views(self, flat: Tensor, begin: int = 0) -> Iterator[tuple[str, Tensor]]:
        """Cut a flat buffer of trained parameters up by their names: views, not copies.

        Args:
            flat: As long as all trained parameters, or as some that follow each other.
            begin: Where in the whole buffer the first of them stands.
        """
        return _cut(flat, self._trained, -begin)

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
        return _cut(self._master[self.trained_size :], self._frozen)


def _cut(
    flat: Tensor, named: Iterable[tuple[str, Tensor]], start: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Yield the views of ``flat`` with the shapes of those of ``named`` that lie within it."""
    for name, parameter in named:
        stop = start + parameter.numel()
        if start >= 0 and stop <= len(flat):
            yield name, flat[start:stop].view(parameter.shape)
        start = stop


class Optimizer:
    """How a gradient changes the weights of one model. A subclass defines `step`.

    Args:
        parameters: The model's parameters.
        config: The optimizer section.
        part: Of the flat buffers, what it trains: all of them, or those from a place on.
    """

    def __init__(
        self, parameters: FlatParameters, config: OptimizerConfig, part: slice = slice(None)
    ) -> None:
        self._parameters, self._config, self._begin = parameters, config, part.start or 0
        self._weights, self._gradient = parameters.weights[part], parameters.gradient[part]
        self._kept: dict[str, Tensor] = {}
        # Updates made and not skipped, a scalar.
        self.step_count = self._keep("step", self._weights.new_zeros(()))

    def _keep(self, name: str, values: Tensor) -> Tensor:
        """Make a scalar, or a buffer as long as the trained parameters, part of the state."""
        self._kept[name] = values
        return values

    def step(self, learning_rate: float, skipped: Tensor) -> None:
        """Change ``parameters.weights`` in place by ``parameters.gradient``.

        Args:
            learning_rate: Size of the step.
            skipped: 1 if nothing may change and the gradient is zeros and NaN; else 0. A float32
                scalar on the device.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return all that an update depends on besides the weights, by name: views, not copies.

        Copying into them restores a saved state. Names of per-parameter tensors end in
        ``/parameter``.
        """
        state = {}
        for key, values in self._kept.items():
            if values.ndim == 0:
                state[key] = values.view(1)
            else:
                views = self._parameters.views(values, self._begin)
                state |= {f"{key}/{name}": view for name, view in views}
        return state

    def reset(self) -> None:
        """Forget all updates: training begins at the weights as they are now."""
        for values in self._kept.values():
            values.zero_()

    def eval_weights(self) -> Tensor | None:
        """Return the weights to validate and save, flat; None if they are the trained ones."""
        return None


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019), fused; decays the matrices only.

    Torch's function instead of its class, whose import loads the compiler and takes seconds.
    """

    def __init__(
        self, parameters: FlatParameters, config: OptimizerConfig, part: slice = slice(None)
    ) -> None:
        super().__init__(parameters, config, part)
        mean = self._keep("exp_avg", torch.zeros_like(self._weights))
        square = self._keep("exp_avg_sq", torch.zeros_like(self._weights))
        num_decayed = max(parameters.matrix_size - self._begin, 0)
        parts = ((slice(0, num_decayed), config.weight_decay), (slice(num_decayed, None), 0.0))
        self._groups = [
            ([tensor[part] for tensor in (self._weights, self._gradient, mean, square)], decay)
            for part, decay in parts
            if len(self._weights[part])
        ]
        beta1, beta2 = config.betas
        flags = {"fused": True, "amsgrad": False, "maximize": False}
        self._options = flags | {"beta1": beta1, "beta2": beta2, "eps": config.epsilon}

    @override
    def step(self, learning_rate: float, skipped: Tensor) -> None:
        before, counts = self.step_count.clone(), [self.step_count]
        options: dict[str, Any] = self._options | {"lr": learning_rate, "found_inf": skipped}
        for (weights, *others), decay in self._groups:
            self.step_count.copy_(before)  # each call counts
            gradient, mean, square = ([tensor] for tensor in others)
            adamw([weights], gradient, mean, square, [], counts, weight_decay=decay, **options)


OptimizerConstructor = Callable[[FlatParameters, OptimizerConfig], Optimizer]
OPTIMIZERS = Registry[OptimizerConstructor](
    "optimizer",
    {
        "schedule-free": "nmt.training.optimizers:ScheduleFreeAdamW",
        "muon": "nmt.training.optimizers:Muon",
        "adafactor": "nmt.training.optimizers:adafactor",
    },
)
OPTIMIZERS.register("adamw", AdamW)


def copy_tensors(tensors: Mapping[str, Tensor], places: Iterable[tuple[str, Tensor]]) -> None:
    """Copy ``tensors[name]`` into each of the named ``places``.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    for name, place in places:
        found = tensors.get(name)
        if found is None or found.shape != place.shape:
            shape = "nothing" if found is None else str(tuple(found.shape))
            needed = f"{name}, but the model needs {tuple(place.shape)}"
            fix = "Resume with the model section of the run's own config.yaml."
            raise CheckpointError(f"The checkpoint has {shape} for {needed}.", fix=fix)
        place.copy_(found)


class ModelOptimizer:
    """Changes the weights of one model; see the module.

    Args:
        parameters: The model's parameters.
        optimizer: Changes them.
        ema_decay: Decay of the running mean of the weights, which is then used in their place.
            After t updates it is at most (1 + t) / (10 + t), so that the first weights are soon
            forgotten. None keeps no mean.
    """

    def __init__(
        self, parameters: FlatParameters, optimizer: Optimizer, *, ema_decay: float | None = None
    ) -> None:
        self.parameters, self._optimizer, self._ema_decay = parameters, optimizer, ema_decay
        self._ema = parameters.weights.clone() if ema_decay is not None else None

    @torch.no_grad()
    def step(
        self, learning_rate: float, gradient_scale: Tensor | float, skipped: Tensor | None = None
    ) -> None:
        """Update with the gradient times ``gradient_scale``, then clear the gradient.

        Where ``skipped`` (a float32 scalar on the device) is 1, nothing changes, whatever the
        gradient and its scale are; None is 0. The host does not wait to learn which it is.
        """
        if skipped is None:
            skipped = self.parameters.weights.new_zeros(())
        not_skipped = 1 - skipped
        # Of a skipped update that leaves zeros and NaN.
        self.parameters.gradient.mul_(gradient_scale * not_skipped)
        self._optimizer.step(learning_rate, skipped)
        if self._ema is not None and self._ema_decay is not None:
            count = self._optimizer.step_count
            grown = (1 + count) / (_AVERAGE_WARMUP + count)
            share = (1 - grown.clamp(max=self._ema_decay)) * not_skipped
            self._ema.lerp_(self.parameters.weights, share)
        self.parameters.clear()
        self.parameters.sync_from_master()

    def _eval_weights(self) -> Tensor | None:
        return self._ema if self._ema is not None else self._optimizer.eval_weights()

    @contextmanager
    def eval_weights(self) -> Iterator[None]:
        """Give the model the weights to validate with, while the context is open."""
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
        """Return the float32 weights to use, by parameter name: views where possible."""
        weights = self._eval_weights()
        flat = self.parameters.weights if weights is None else weights
        return {**dict(self.parameters.views(flat)), **dict(self.parameters.frozen())}

    def state(self) -> dict[str, Tensor]:
        """Return what an update depends on besides `weights`, by name: views, not copies."""
        state = self._optimizer.state()
        if self._eval_weights() is not None:
            views = self.parameters.views(self.parameters.weights)
            state |= {f"{_TRAINED}/{name}": view for name, view in views}
        return state

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Take over `weights` and `state` of a run with the same parameters.

        Raises:
            CheckpointError: A tensor is missing or has another shape, or another kind of optimizer
                made the state.
        """
        self.load_weights(weights)
        own = self.state()
        found, needed = (sorted({key.split("/")[0] for key in keys}) for keys in (state, own))
        if not own.keys() <= state.keys() or (_TRAINED in found and _TRAINED not in needed):
            has = f"it has {', '.join(found) or 'nothing'}"
            needs = f"this one needs {', '.join(needed)}, each for its trained parameters"
            fix = "Resume with optimizer, ema_decay and freeze of the run's own config.yaml."
            problem = f"The checkpoint is of another optimizer: {has}, but {needs}."
            raise CheckpointError(problem, fix=fix)
        copy_tensors(state, own.items())
        self.parameters.sync_from_master()

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Begin from ``weights``, with nothing else remembered.

        Raises:
            CheckpointError: A tensor is missing or has another shape.
        """
        copy_tensors(weights, self.parameters.views(self.parameters.weights))
        copy_tensors(weights, self.parameters.frozen())
        self.parameters.sync_from_master()
        self._optimizer.reset()
        if self._ema is not None:
            self._ema.copy_(self.parameters.weights)


def build_optimizer(
    model: Transformer,
    config: OptimizerConfig,
    dtype: torch.dtype,
    *,
    ema_decay: float | None = None,
) -> ModelOptimizer:
    """Make the configured optimizer of ``model``, whose working weights are to be in ``dtype``.

    Raises:
        ConfigError: There is no optimizer of that name.
    """
    parameters = FlatParameters(model, dtype)
    optimizer = OPTIMIZERS[config.kind](parameters, config)
    return ModelOptimizer(parameters, optimizer, ema_decay=ema_decay)
