"""Schedule-free AdamW, Muon, and an adapter for the optimizers of `torch.optim`.

These optimizers update the flat float32 buffers of `FlatParameters`. They never read a tensor's
value on the host, because reading would wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from nmt.config.training import OptimizerConfig
from nmt.device.device import precise_dtype
from nmt.training.optimizer import AdamW, FlatParameters, Optimizer, OptimizerConstructor, is_matrix


class ScheduleFreeAdamW(Optimizer):
    """Schedule-free AdamW, which needs neither a learning rate decay nor a planned end.

    Defazio et al. (2024), "The Road Less Scheduled", algorithm 1 with the scaling of AdamW. The
    optimizer keeps three points: z takes the steps; x is the mean of z, weighted by the squared
    learning rate, and is validated and saved; the gradient is computed at y = (1 - beta1) z +
    beta1 x. During training, the model's parameters are y.
    """

    def __init__(self, parameters: FlatParameters, config: OptimizerConfig) -> None:
        super().__init__(parameters, config)
        dtype = precise_dtype(self._weights.device)
        zero = self._weights.new_zeros((), dtype=dtype)
        self.step_count = self._add_state("step", zero)
        # Sum of the weights of all updates in the mean x: their squared learning rates.
        self._weight_sum = self._add_state("weight_sum", zero.clone())
        self._z = self._add_state("z", self._weights.clone())
        self._square = self._add_state("exp_avg_sq", torch.zeros_like(self._weights))
        self._num_decayed = parameters.matrix_size  # the matrices come first in the buffers

    @override
    def step(self, learning_rate: float, skipped: Tensor) -> None:
        beta1, beta2 = self._config.betas
        dtype = self._weights.dtype
        not_skipped = 1 - skipped.to(precise_dtype(skipped.device))
        self.step_count += not_skipped
        # Weight of this update in the mean x.
        mean_weight = not_skipped * learning_rate**2
        self._weight_sum += mean_weight
        # Share of the new z in the mean x. 0 / 0, which becomes 0, while the learning rate is zero.
        share = (mean_weight / self._weight_sum).nan_to_num_()
        # In a skipped update, the gradient has only zeros and NaN, the decay is 1, and all rates
        # are 0. So nothing changes.
        gradient = self._gradient.nan_to_num_(0, 0, 0)
        square_decay = (beta2**not_skipped).to(dtype)
        self._square.mul_(square_decay).addcmul_(gradient, gradient, value=1 - beta2)
        bias_correction = 1 - beta2 ** self.step_count.clamp(min=1)
        scale = (self._square / bias_correction.to(dtype)).sqrt_()
        scale.add_(self._config.epsilon)
        change = torch.div(gradient, scale, out=scale)
        decayed = self._weights[: self._num_decayed]
        change[: self._num_decayed].add_(decayed, alpha=self._config.weight_decay)
        # z moves by `rate`. x moves to the new z by `share`. The weights are y, so they first move
        # to the old z by `share`, and then change with z and x.
        rate = -learning_rate * not_skipped
        self._weights.lerp_(self._z, share.to(dtype))
        rate_of_y = rate * (1 - beta1 * (1 - share))
        self._weights.addcmul_(change, rate_of_y.to(dtype))
        self._z.addcmul_(change, rate.to(dtype))

    @override
    def reset(self) -> None:
        super().reset()
        self._z.copy_(self._weights)  # at the start, x = y = z

    @override
    def eval_weights(self) -> Tensor:
        """Return the mean x, computed from y and z. (trained_size,), float32.

        From y = (1 - beta1) z + beta1 x follows x = y + (1 - 1 / beta1) (z - y).
        """
        return self._weights.lerp(self._z, 1 - 1 / self._config.betas[0])


# Coefficients of a polynomial that moves singular values towards 1 (Jordan et al. 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# If there are two iterations only, each has the polynomial with the smallest largest error on the
# values that it can get, as in Amsel et al. (2025), "The Polar Express"; at first: 0.05 to 1.
_TWO_ITERATIONS = ((6.7524, -18.3510, 13.2633), (2.5379, -1.8747, 0.4413))
# Root mean square of AdamW's steps at learning rate 1 (Liu et al. 2025).
_RMS_OF_ADAMW = 0.2
# Indices of the matrices that are orthogonalised together: those with more rows than columns, then
# the others. Transposed, the first ones have the shape of the others.
_Group = tuple[list[int], list[int]]


def orthogonalise(
    matrices: Tensor, num_iterations: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Return nearly orthogonal matrices that have the singular vectors of ``matrices``.

    Uses Newton-Schulz iterations of fifth order, after which most singular values are between 0.7
    and 1.2. Two iterations have coefficients of their own, because the usual ones need more.

    Args:
        matrices: (n, rows, columns), with at most as many rows as columns.
        num_iterations: Number of iterations. Five are enough for all but tiny singular values.
        dtype: Dtype of the computation and the result; None keeps the dtype of ``matrices``.
            bfloat16 is precise enough.

    Returns:
        (n, rows, columns).
    """
    # The iterations converge from singular values of at most 1. A zero matrix stays zero.
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    iterate = (matrices / (norms + 1e-7)).to(dtype or matrices.dtype)
    gram = torch.bmm(iterate, iterate.mT)
    first, *others = [_NEWTON_SCHULZ] * num_iterations
    if num_iterations == len(_TWO_ITERATIONS):
        first, *others = _TWO_ITERATIONS
        # A closer bound of the singular values: the fourth root of the sum of their fourth powers.
        squared_bounds = torch.linalg.vector_norm(gram, dim=(1, 2), keepdim=True) + 1e-7
        iterate = iterate / squared_bounds.sqrt()
        gram = gram / squared_bounds
    iterate = _iterate(iterate, gram, first)
    for following in others:
        iterate = _iterate(iterate, torch.bmm(iterate, iterate.mT), following)
    return iterate


def _iterate(matrices: Tensor, gram: Tensor, coefficients: tuple[float, float, float]) -> Tensor:
    """Return a X + (b G + c G G) X for matrices X with the Gram matrices G = X X^T."""
    a, b, c = coefficients
    polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    return torch.baddbmm(matrices, polynomial, matrices, beta=a)


class Muon(Optimizer):
    """Muon: orthogonalised momentum for the matrices of the layers, AdamW for other parameters.

    Jordan et al. (2024), "Muon: an optimizer for hidden layers". Steps are scaled to the size of
    AdamW's steps (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2), so that both
    optimizers can use the same learning rate.
    """

    def __init__(self, parameters: FlatParameters, config: OptimizerConfig) -> None:
        matrix_size = parameters.matrix_size
        super().__init__(parameters, config, slice(0, matrix_size))
        self._momentum = self._add_state("momentum", torch.zeros_like(self._weights))
        self._adamw = AdamW(parameters, config, slice(matrix_size, None))
        self.step_count = self._adamw.step_count
        # Step of all matrices at learning rate 1; memory that each update reuses.
        self._change = torch.empty_like(self._weights)
        self._iteration_dtype = None  # None keeps float32
        if self._weights.is_cuda or parameters.working_dtype == torch.bfloat16:
            self._iteration_dtype = torch.bfloat16
        # Views of `_change`, one for each matrix.
        self._changes = parameters.matrices(self._change)
        groups = dict[tuple[int, ...], _Group]()
        for index, change in enumerate(self._changes):
            shape = tuple(sorted(change.shape))
            tall, wide = groups.setdefault(shape, ([], []))
            is_tall = change.shape[0] > change.shape[1]
            indices = tall if is_tall else wide
            indices.append(index)
        self._groups = list(groups.values())

    @override
    def step(self, learning_rate: float, skipped: Tensor) -> None:
        config = self._config
        dtype = self._weights.dtype
        not_skipped = 1 - skipped.to(precise_dtype(skipped.device))
        gradient = self._gradient.nan_to_num_(0, 0, 0)
        share = not_skipped * (1 - config.momentum)
        self._momentum.lerp_(gradient, share.to(dtype))
        torch.lerp(gradient, self._momentum, config.momentum, out=self._change)  # Nesterov
        num_iterations = config.newton_schulz_steps
        steps = dict[int, Tensor]()  # flat step of each matrix, by its index
        for tall, wide in self._groups:
            group = [self._changes[index].mT for index in tall]
            group += [self._changes[index] for index in wide]
            orthogonal = orthogonalise(torch.stack(group), num_iterations, self._iteration_dtype)
            # An orthogonal matrix with at least as many columns as rows has a root mean square of
            # 1 / sqrt(number of columns).
            orthogonal = orthogonal * (_RMS_OF_ADAMW * orthogonal.shape[-1] ** 0.5)
            orthogonal = orthogonal.to(dtype)
            tall_part, wide_part = orthogonal.tensor_split([len(tall)])
            tall_steps = tall_part.mT.flatten(1)
            wide_steps = wide_part.flatten(1)
            steps.update(zip(tall, tall_steps, strict=True))
            steps.update(zip(wide, wide_steps, strict=True))
        ordered = [steps[index] for index in range(len(steps))]
        if ordered:  # empty if no matrix is trained
            torch.cat(ordered, out=self._change)
        decay = not_skipped * (learning_rate * config.weight_decay)
        rate = not_skipped * -learning_rate
        self._weights.mul_((1 - decay).to(dtype))
        self._weights.addcmul_(self._change, rate.to(dtype))
        self._adamw.step(learning_rate, skipped)

    @override
    def state(self) -> dict[str, Tensor]:
        return super().state() | self._adamw.state()

    @override
    def reset(self) -> None:
        super().reset()
        self._adamw.reset()


class TorchOptimizer(Optimizer):
    """Adapter for an optimizer of `torch.optim`.

    Copies weights and state before each step, and restores them if the update is skipped. If
    ``kind`` keeps counters on the CPU, each step waits for the GPU.

    Args:
        parameters: Flat buffers of the model.
        config: The ``optimizer`` section. Weight decay applies to matrices only.
        kind: Class of the optimizer; called with parameter groups.
        options: Further arguments of ``kind``, without learning rate and weight decay.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        config: OptimizerConfig,
        kind: Callable[..., torch.optim.Optimizer],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(parameters, config)
        # Parameters of the optimizer by name: views of the flat weights.
        self._by_name = dict[str, Tensor]()
        by_decay = dict[float, list[Tensor]]()
        gradients = parameters.views(parameters.gradient)
        for name, view in parameters.views(parameters.weights).items():
            parameter = torch.nn.Parameter(view)
            parameter.grad = gradients[name]
            self._by_name[name] = parameter
            decay = config.weight_decay if is_matrix(name, parameter) else 0.0
            by_decay.setdefault(decay, []).append(parameter)
        # `decay` is ours: `reset` sets `weight_decay` to 0 for a step, and restores it from here.
        groups = [{"params": group, "decay": decay} for decay, group in by_decay.items()]
        self._optimizer = kind(groups, **options)
        self.reset()

    @override
    def reset(self) -> None:
        """Create a new state by a step with gradient 0 and learning rate 0.

        torch creates the tensors of the state in the first step. They must exist before, so that
        `state` returns all of them.
        """
        super().reset()
        self._optimizer.state.clear()
        # The step may still change the weights; both are restored.
        weights = self._weights.clone()
        gradient = self._gradient.clone()
        self._gradient.zero_()
        for group in self._optimizer.param_groups:
            group.update(lr=0.0, weight_decay=0.0)
        self._optimizer.step()
        self._weights.copy_(weights)
        self._gradient.copy_(gradient)
        for name, tensor in self.state().items():
            if name.startswith("step/"):  # torch's counters, which have counted this step
                tensor.zero_()
        for group in self._optimizer.param_groups:
            group["weight_decay"] = group["decay"]

    @override
    def step(self, learning_rate: float, skipped: Tensor) -> None:
        tensors = [*self._by_name.values(), *self.state().values()]
        old_values = [tensor.detach().clone() for tensor in tensors]
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self.step_count += 1  # part of `state`, so it is also restored
        for tensor, old_value in zip(tensors, old_values, strict=True):
            is_skipped = skipped.to(tensor.device) > 0
            tensor.data.copy_(torch.where(is_skipped, old_value, tensor.detach()))

    @override
    def state(self) -> dict[str, Tensor]:
        state = super().state()
        for name, parameter in self._by_name.items():
            for key, value in self._optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    state[f"{key}/{name}"] = value
        return state


def from_torch(
    kind: Callable[..., torch.optim.Optimizer],
    options: Callable[[OptimizerConfig], Mapping[str, Any]] = lambda _config: {},
) -> OptimizerConstructor:
    """Return a constructor for `OPTIMIZERS` from a class of `torch.optim`.

    Args:
        kind: The class.
        options: Returns the arguments of the class for an ``optimizer`` section, without learning
            rate and weight decay.
    """
    return lambda parameters, config: TorchOptimizer(parameters, config, kind, options(config))


adafactor = from_torch(torch.optim.Adafactor)
