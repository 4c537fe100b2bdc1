"""Weights in 16 or 8 bits for translating on a CPU: less memory traffic, faster products.

- float16: weights are rounded once, and everything is computed in float32.
- int8: weights are rounded once, with a scale for each output; inputs are rounded at each call,
  with a scale for each layer that was fixed before, or else for each row. So a row's result depends
  on no other row, which a scale for the whole input would break. Attention reads without any error
  that padding changes (`nmt.model.attention.read_exactly`): rounding would make more of it.
  Source: Jacob et al. (2018), Quantization and Training of Neural Networks; here after training.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from nmt.errors import DeviceError
from nmt.model.blocks import CrossAttention, SelfAttention
from nmt.model.projection import (
    NarrowOutput,
    OutputLayer,
    Projection,
    scaled_products,
    whole_inputs,
)
from nmt.model.transformer import Transformer

_PRODUCT = "linear_with_input_q_dq_qweight_dq_output_fp32"
# Inputs or weights take 7 of the 8 bits: sums of two products must not overflow 16 bits, in which
# processors without special instructions (VNNI) add them. Where a row has a scale of its own it
# holds all its inputs, and weights can have 8 bits. Where a scale is fixed, inputs may be beyond
# its range, and are cut where their 8 bits end.
_LARGEST_WEIGHT, _LARGEST_INPUT = 127, 63
_LARGEST_WEIGHT_IF_FIXED, _LARGEST_INPUT_IF_FIXED = 63, 127
_OF_ROWS = 1 / _LARGEST_INPUT, 64  # scale and zero of rows that were divided by their largest value
_OUTPUT = "output_layer"
_FEW = 768  # outputs that packed weights do not pay for

_Rounding = tuple[float, int]
"""Scale and zero: x stands for scale * (x - zero)."""
InputRanges = Mapping[str, tuple[float, float]]
"""Least and largest value that each linear layer was seen to read; least is at most 0."""


class Float16Linear(OutputLayer):
    """A linear layer with 16-bit weights. It cannot be trained.

    Args:
        weight: (O, I), float32.
        bias: (O,), float32, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        operators = _operators()
        self._packed = operators.linear_prepack_fp16(weight.detach(), bias)
        self._multiply, self._unpack = (
            operators.linear_dynamic_fp16,
            operators.linear_unpack_fp16,
        )

    @override
    def forward(self, values: Tensor) -> Tensor:
        """(..., I) -> (..., O), float32."""
        return self._multiply(values, self._packed)

    @override
    def narrow(self, tokens: Tensor) -> Float16Linear:
        weight, bias = self._unpacked
        return Float16Linear(
            weight.index_select(0, tokens), None if bias is None else bias.index_select(0, tokens)
        )

    @cached_property
    def _unpacked(self) -> tuple[Tensor, Tensor | None]:
        return self._unpack(self._packed)


class Int8Linear(OutputLayer):
    """A linear layer with 8-bit weights. It cannot be trained.

    Args:
        weight: (O, I), float32.
        bias: (O,), float32, or None.
        input_range: Least and largest value of inputs, where they are known: what is beyond is cut
            off. Else every row gets a scale of its own, which takes four more operations.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, input_range: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        operators = _operators()
        largest = _LARGEST_WEIGHT if input_range is None else _LARGEST_WEIGHT_IF_FIXED
        scales = weight.detach().abs().amax(dim=1).clamp(min=1e-12) / largest
        self._rounding = None if input_range is None else _rounding(*input_range)
        self._bias = None if bias is None else bias.detach().clone()
        with warnings.catch_warnings():
            # To be removed from torch one day. The products of oneDNN, which are to stay, take
            # twice the time for the few rows of a decoding step.
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(
                weight.detach(), scales.double(), torch.zeros_like(scales).long(), 0, torch.qint8
            )
            packed_bias = None if self._rounding is None else self._bias
            self._packed = operators.linear_prepack(rounded, packed_bias)
        self._multiply, self._unpack = getattr(operators, _PRODUCT), operators.linear_unpack

    @override
    def forward(self, values: Tensor) -> Tensor:
        """(..., I) -> (..., O), float32."""
        if self._rounding is not None:
            return self._multiply(values, *self._rounding, self._packed)
        largest = values.abs().amax(dim=-1, keepdim=True)
        # A row of zeros becomes some whole numbers, and its products zeros again.
        products = self._multiply(values / largest, *_OF_ROWS, self._packed)
        if self._bias is None:
            return products.mul_(largest)
        return torch.addcmul(self._bias, products, largest)

    @override
    def narrow(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        rounded, scales = self._unpacked
        scale, zero = self._rounding or _OF_ROWS
        none = scales.new_empty(0)
        projection = Projection(
            weight=rounded.index_select(0, tokens),
            bias=none if self._bias is None else self._bias.index_select(0, tokens),
            scales=scales.index_select(0, tokens) * scale,
            inverse=1 / torch.tensor(scale),
            zero=zero,
            is_fixed=self._rounding is not None,
        )
        largest = _LARGEST_INPUT * _LARGEST_WEIGHT
        if self._rounding is not None:
            largest = max(zero, 255 - zero) * _LARGEST_WEIGHT_IF_FIXED
        if len(tokens) > _FEW or largest * rounded.shape[1] > 1 << 24:
            return _PackedInt8(projection)
        return NarrowOutput(projection._replace(weight=projection.weight.float()))

    @cached_property
    def _unpacked(self) -> tuple[Tensor, Tensor]:
        weight, _ = self._unpack(self._packed)
        return weight.int_repr(), weight.q_per_channel_scales().float()


class _PackedInt8:
    """A `Projection` of whole numbers, whose weights are packed: for many outputs.

    To pack weights with a scale for each output takes microseconds for each of them. So their
    scales are no part of the pack, but a product of their own. Results are those of `project`.

    Args:
        projection: With (O, I) weights in int8.
    """

    def __init__(self, projection: Projection) -> None:
        operators = _operators()
        weight = torch._make_per_tensor_quantized_tensor(projection.weight, 1.0, 0)
        self._packed = operators.linear_prepack(weight, None)
        self._multiply = getattr(operators, _PRODUCT)
        self._projection = projection

    def __call__(self, values: Tensor) -> Tensor:
        """(..., I) -> (..., O), float32."""
        whole, largest = whole_inputs(values, self._projection)
        products = self._multiply(whole, 1.0, self._projection.zero, self._packed)
        return scaled_products(products, largest, self._projection)


def input_ranges(model: Transformer, read: Callable[[], object]) -> InputRanges:
    """Return what `quantize` can use of the inputs of linear layers, seen while ``read`` runs.

    Args:
        model: With float32 weights.
        read: Sends representative text through it.
    """
    seen: dict[str, tuple[float, float]] = {}

    def watch(name: str, values: Tensor) -> None:
        low, high = seen.get(name, (0.0, 0.0))
        seen[name] = min(low, float(values.min())), max(high, float(values.max()))

    # What the output projection reads is what the last norm gives.
    hooks = [model.decoder_norm.register_forward_hook(lambda _, __, out: watch(_OUTPUT, out))]
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(
                module.register_forward_pre_hook(lambda _, inputs, n=name: watch(n, inputs[0]))
            )
    try:
        read()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _rounding(low: float, high: float) -> _Rounding:
    """Return scale and zero of inputs of a range. What is never negative gets all numbers."""
    if low >= 0:
        return max(high, 1e-12) / (2 * _LARGEST_INPUT_IF_FIXED + 1), 0
    return max(high, -low, 1e-12) / _LARGEST_INPUT_IF_FIXED, _LARGEST_INPUT_IF_FIXED + 1


def quantize(
    model: Transformer, dtype: Literal["float16", "int8"], ranges: InputRanges | None = None
) -> None:
    """Give ``model``, which is on the CPU, smaller weights in all linear layers, in place.

    Tables of token vectors, norms and biases stay as they are; a tied output projection gets a
    copy of its own.

    Args:
        model: With float32 weights.
        dtype: Of the weights.
        ranges: From `input_ranges`; makes int8 faster.

    Raises:
        DeviceError: The model is elsewhere, or this build of torch lacks the products.
    """
    if model.output_weight.device.type != "cpu":
        raise DeviceError(f"{dtype} weights are for the CPU.", fix=f"Leave --dtype {dtype} out.")
    _operators()

    def small(name: str, weight: Tensor, bias: Tensor | None) -> OutputLayer:
        if dtype == "float16":
            return Float16Linear(weight, bias)
        return Int8Linear(weight, bias, (ranges or {}).get(name))

    for place, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, small(f"{place}.{name}", child.weight, child.bias))
    for module in model.modules():
        if isinstance(module, SelfAttention | CrossAttention):
            module.is_exact = dtype == "int8"
    model.output_layer = small(_OUTPUT, model.output_weight, model.output_bias)


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
