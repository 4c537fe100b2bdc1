"""Translate with Hugging Face `generate` and the weights of an nmt model, in a separate process.

`bench_engines.py --hugging-face PYTHON` starts this script. The interpreter needs transformers, but
not nmt: this file imports nothing from the package.

    PYTHON scripts/bench_hugging_face.py FOLDER --dtype float32

FOLDER contains ``shape.json``, the ``model`` section of a configuration, and
``weights.safetensors``, the parameters of nmt and two matrices of positions. The pre-norm model of
nmt becomes an `M2M100` model, which is also pre-norm; MarianMTModel is post-norm.

Each line of standard input is a JSON `Request`; each line of standard output is its `Answer`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict

import torch
from safetensors.torch import load_file
from torch import Tensor

transformers: Any = import_module("transformers")  # not installed when types are checked

PAD_ID = 0
BOS_ID = 2
EOS_ID = 3
_SPLIT = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": ("self_attn.out_proj",),
    "self_residual.norm": ("self_attn_layer_norm",),
    "cross_attention.query": ("encoder_attn.q_proj",),
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_residual.norm": ("encoder_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "feed_forward_residual.norm": ("final_layer_norm",),
}
"""Name in a layer of nmt -> names in M2M100 that its rows are split into."""
_TABLES = (
    "model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head",
)  # fmt: skip
"""Names of the one table of token vectors."""


class Request(TypedDict):
    """Sentences and decoding settings."""

    batches: list[list[list[int]]]
    """Source ids of each sentence of each batch, without EOS."""
    longest: list[int]
    """Maximum output length of each batch, in tokens including EOS."""
    beam_size: int
    length_penalty: float
    threads: int


class Answer(TypedDict):
    """Translations and time."""

    seconds: float
    """Time from the source ids to the output ids."""
    outputs: list[list[int]]
    """Target ids of each sentence, without BOS and EOS, in the order of the batches."""


def renamed(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of nmt with the names of M2M100."""
    for name in _TABLES:
        yield f"{name}.weight", weights["source_vectors"]
    for name, value in weights.items():
        if name == "source_vectors":
            continue
        # encoder_norm.KIND, or encoder.LAYER.MODULE.KIND, where KIND is weight or bias.
        stack, *inner, kind = name.split(".")
        if not inner:
            yield f"model.{stack.removesuffix('_norm')}.layer_norm.{kind}", value
            continue
        layer, *module = inner
        new_names = _SPLIT[".".join(module)]
        parts = value.chunk(len(new_names))
        for new_name, part in zip(new_names, parts, strict=True):
            yield f"model.{stack}.layers.{layer}.{new_name}.{kind}", part


def load(folder: Path) -> Any:
    """Load the model in ``folder``, in float32."""
    shape = json.loads((folder / "shape.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "weights.safetensors")
    # The vector of each position, by the stack of layers that reads it. (P, D).
    tables = {stack: weights.pop(f"{stack}_positions") for stack in ("encoder", "decoder")}
    config = transformers.M2M100Config(
        vocab_size=len(weights["source_vectors"]),
        d_model=shape["model_dim"],
        encoder_layers=shape["encoder_layers"],
        decoder_layers=shape["decoder_layers"],
        encoder_attention_heads=shape["num_heads"],
        decoder_attention_heads=shape["num_heads"],
        encoder_ffn_dim=shape["ff_dim"],
        decoder_ffn_dim=shape["decoder_ff_dim"] or shape["ff_dim"],
        activation_function=shape["activation"],
        scale_embedding=shape["scale_embeddings"],
        max_position_embeddings=len(tables["encoder"]),
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
    )
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    model.load_state_dict(dict(renamed(weights)))
    for stack, table in tables.items():
        # M2M100 numbers positions from PAD_ID + 1, so rows up to PAD_ID are unused.
        padding = torch.zeros(PAD_ID + 1, table.shape[1])
        layers = getattr(model.model, stack)
        layers.embed_positions.weights = torch.cat((padding, table))
    return model


@torch.inference_mode()
def translate(model: Any, request: Request) -> Answer:
    """Translate the batches of a request."""
    torch.set_num_threads(request["threads"])
    outputs: list[list[int]] = []
    start = perf_counter()
    for batch, max_length in zip(request["batches"], request["longest"], strict=True):
        width = max(map(len, batch)) + 1  # With EOS.
        source = torch.full((len(batch), width), PAD_ID)
        for row, ids in enumerate(batch):
            ids_with_end = torch.tensor([*ids, EOS_ID])
            source[row, : len(ids_with_end)] = ids_with_end
        generated = model.generate(
            input_ids=source,
            attention_mask=(source != PAD_ID).long(),
            num_beams=request["beam_size"],
            do_sample=False,
            max_new_tokens=max_length,
            length_penalty=request["length_penalty"],
            early_stopping=False,  # continue while a better output is likely, as nmt does
        )
        outputs += [_until_end(ids[1:]) for ids in generated.tolist()]  # ids[0] is BOS.
    return {"seconds": perf_counter() - start, "outputs": outputs}


def _until_end(ids: list[int]) -> list[int]:
    """Return the ids before EOS; without EOS, all ids except padding."""
    if EOS_ID in ids:
        return ids[: ids.index(EOS_ID)]
    return [token_id for token_id in ids if token_id != PAD_ID]


def main() -> None:
    """Answer requests until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("float32", "bf16"), default="float32")
    chosen = parser.parse_args()
    model = load(chosen.folder)
    if chosen.dtype == "bf16":
        model = model.bfloat16()
    print(json.dumps({"version": transformers.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = translate(model, request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
