"""Weights in 16 or 8 bits for translating on a CPU: less memory traffic, faster products.

- float16: weights are rounded once, and everything is computed in float32.
- int8: weights are rounded once, with a scale for each output; inputs are rounded at each call,
  with a scale for each row. So a row's result depends on no other row: translations stay
  independent of what shares their batch, which a scale for the whole input would break.
  Source: Jacob et al. (2018), Quantization and Training of Neural Networks; here after training.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmt.errors import DeviceError
from nmt.model.transformer import Transformer

_PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
_LARGEST_WEIGHT = 127
# Inputs take 7 of the 8 bits: sums of two products must not overflow 16 bits, in which processors
# without special instructions (VNNI) add them.
_LARGEST_INPUT, _ZERO = 63, 64


class Float16Linear(nn.Module):
    """A linear layer with 16-bit weights. It cannot be trained.

    Args:
        weight: (O, I), float32.
        bias: (O,), float32, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        operators = _operators()
        self._packed = operators.linear_prepack_fp16(weight.detach(), bias)
        self._multiply = operators.linear_dynamic_fp16

    @override
    def forward(self, values: Tensor) -> Tensor:
        """(..., I) -> (..., O), float32."""
        return self._multiply(values, self._packed)


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights. It cannot be trained.

    Args:
        weight: (O, I), float32.
        bias: (O,), float32, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        operators = _operators()
        scales = weight.detach().abs().amax(dim=1).clamp(min=1e-12) / _LARGEST_WEIGHT
        with warnings.catch_warnings():
            # To be removed from torch one day. The products of oneDNN, which are to stay, take
            # twice the time for the few rows of a decoding step.
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(
                weight.detach(), scales.double(), torch.zeros_like(scales).long(), 0, torch.qint8
            )
            self._packed = operators.linear_prepack(rounded, None)
        self._multiply = getattr(operators, _PRODUCT)
        self._bias = None if bias is None else bias.detach().clone()

    @override
    def forward(self, values: Tensor) -> Tensor:
        """(..., I) -> (..., O), float32."""
        largest = values.abs().amax(dim=-1, keepdim=True)
        # A row of zeros becomes some whole numbers, and its products zeros again.
        products = self._multiply(values / largest, 1 / _LARGEST_INPUT, _ZERO, self._packed)
        if self._bias is None:
            return products.mul_(largest)
        return torch.addcmul(self._bias, products, largest)


def quantize(model: Transformer, dtype: Literal["float16", "int8"]) -> None:
    """Give ``model``, which is on the CPU, smaller weights in all linear layers, in place.

    Tables of token vectors, norms and biases stay as they are; a tied output projection gets a
    copy of its own.

    Raises:
        DeviceError: The model is elsewhere, or this build of torch lacks the products.
    """
    if model.output_weight.device.type != "cpu":
        raise DeviceError(f"{dtype} weights are for the CPU.", fix=f"Leave --dtype {dtype} out.")
    _operators()
    small = {"float16": Float16Linear, "int8": Int8Linear}[dtype]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, small(child.weight, child.bias))
    model.output_layer = small(model.output_weight, model.output_bias)


@cache
def _operators() -> torch._ops._OpNamespace:
    """The quantized operators of torch, with an engine that this processor has.

    Raises:
        DeviceError: There is none.
    """
    supported = torch.backends.quantized.supported_engines
    has_products = hasattr(torch.ops.quantized, _PRODUCT) and hasattr(torch, "quantize_per_channel")
    if not (has_products and {"x86", "fbgemm"} & {*supported}):
        raise DeviceError(
            "This build of torch has no products of small weights for this processor.",
            fix="Leave --dtype out, or export the model for CTranslate2.",
        )
    torch.backends.quantized.engine = "x86" if "x86" in supported else "fbgemm"
    return torch.ops.quantized
