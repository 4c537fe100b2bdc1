"""AdamW over one flat buffer of parameters, with float32 master weights where training is in bf16.

All parameters of the model are views of one buffer, and so are their gradients: clearing,
clipping and the update are a handful of calls, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from nmt.config.training import OptimizerConfig
from nmt.errors import CheckpointError


def is_decayed(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to the matrices of the layers, not to tables or vectors."""
    return parameter.ndim == 2 and name.startswith(("encoder.", "decoder."))


class FlatAdamW:
    """AdamW (Loshchilov and Hutter 2019) on the parameters of ``model``, which it moves.

    Args:
        model: The model, already on its device. Its parameters become views of one buffer.
        config: The optimizer section.
        dtype: Working dtype of the parameters; if not float32, a float32 master copy is kept and
            updated, and gradients are summed in float32.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, dtype: torch.dtype) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        decayed = [(name, p) for name, p in named if is_decayed(name, p)]
        others = [(name, p) for name, p in named if not is_decayed(name, p)]
        self._named = decayed + others
        num_decayed = sum(p.numel() for _, p in decayed)

        self._master = torch.cat([p.detach().float().flatten() for _, p in self._named])
        self._gradient = torch.zeros_like(self._master)
        if dtype == torch.float32:
            self._working, self._working_gradient = self._master, self._gradient
        else:
            self._working = self._master.to(dtype)
            self._working_gradient = torch.zeros_like(self._working)
        start = 0
        for _, parameter in self._named:
            stop = start + parameter.numel()
            parameter.data = self._working[start:stop].view(parameter.shape)
            parameter.grad = self._working_gradient[start:stop].view(parameter.shape)
            start = stop

        groups = []
        for part, decay in (
            (slice(0, num_decayed), config.weight_decay),
            (slice(num_decayed, None), 0.0),
        ):
            flat = nn.Parameter(self._master[part])
            flat.grad = self._gradient[part]
            if len(flat):
                groups.append({"params": [flat], "weight_decay": decay})
        self._adam = torch.optim.AdamW(
            groups, lr=0.0, betas=config.betas, eps=config.epsilon, fused=True
        )

    def accumulate(self) -> None:
        """Call after each backward: takes the gradients of the working dtype over."""
        if self._working_gradient is not self._gradient:
            self._gradient += self._working_gradient
            self._working_gradient.zero_()

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of the whole gradient, a scalar."""
        return torch.linalg.vector_norm(self._gradient)

    def step(self, learning_rate: float, gradient_scale: Tensor | float) -> None:
        """Update with the gradient times ``gradient_scale``, then clear the gradient."""
        self._gradient *= gradient_scale
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        self.clear()
        if self._working is not self._master:
            self._working.copy_(self._master)

    def clear(self) -> None:
        """Forget the gradient."""
        self._gradient.zero_()
        if self._working_gradient is not self._gradient:
            self._working_gradient.zero_()

    def _views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for name, parameter in self._named:
            stop = start + parameter.numel()
            yield name, flat[start:stop].view(parameter.shape)
            start = stop

    def weights(self) -> dict[str, Tensor]:
        """Return the float32 weights by parameter name: views, not copies."""
        return dict(self._views(self._master))

    def _moments(self) -> dict[str, Tensor]:
        states = [self._adam.state[group["params"][0]] for group in self._adam.param_groups]
        return {key: torch.cat([s[key] for s in states]) for key in ("exp_avg", "exp_avg_sq")}

    def state(self) -> dict[str, Tensor]:
        """Return what an update depends on besides the weights: moments by name, and the count."""
        if not self._adam.state:
            return {}
        counts = [self._adam.state[g["params"][0]]["step"] for g in self._adam.param_groups]
        state = {"step": counts[0].reshape(1).float()}
        for key, flat in self._moments().items():
            state |= {f"{key}/{name}": view for name, view in self._views(flat)}
        return state

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Take over `weights` and `state` of a run with the same parameters.

        Raises:
            CheckpointError: A tensor is missing or has another shape.
        """
        self._copy(weights, self._master, "")
        self._working.copy_(self._master)
        self._adam.state.clear()
        if not state:
            return
        flat = {}
        for key in ("exp_avg", "exp_avg_sq"):
            flat[key] = torch.empty_like(self._master)
            self._copy(state, flat[key], f"{key}/")
        start = 0
        for group in self._adam.param_groups:
            parameter = group["params"][0]
            stop = start + len(parameter)
            self._adam.state[parameter] = {
                "step": state["step"].reshape(()).to(parameter.device).clone(),
                **{key: values[start:stop].clone() for key, values in flat.items()},
            }
            start = stop

    def _copy(self, tensors: Mapping[str, Tensor], flat: Tensor, prefix: str) -> None:
        for name, view in self._views(flat):
            found = tensors.get(prefix + name)
            if found is None or found.shape != view.shape:
                shape = "nothing" if found is None else str(tuple(found.shape))
                raise CheckpointError(
                    f"The checkpoint has {shape} for {prefix + name}, "
                    f"but the model needs {tuple(view.shape)}.",
                    fix="Resume with the model section of the run's own config.yaml.",
                )
            view.copy_(found)
