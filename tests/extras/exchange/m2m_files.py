"""Text in twelve scripts, and small folders of M2M-100 and NLLB-200 made without transformers."""

# ruff: noqa: RUF001 - the scripts of SENTENCES have similar letters
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from safetensors.numpy import save_file

from tests.extras.exchange.marian_files import DIM, KINDS, settings, weights

LANGUAGES = ("ary_Arab", "eng_Latn", "fra_Latn", "rus_Cyrl")
NUM_TOKENS = 601 + len(LANGUAGES) + 3  # with <mask> and two rows without a token
# Universal Declaration of Human Rights, article 1.
SENTENCES = (
    "All human beings are born free and equal in dignity and rights.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "人人生而自由，在尊严和权利上一律平等。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი ღირსებითა და უფლებებით.",
)


def mixed_lines(count: int) -> list[str]:
    """The sentences, then words of them in other orders, with odd spaces and unknown characters."""
    draw = np.random.Generator(np.random.PCG64(3))
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    glue, odd = (
        (" ", " ", "  ", "\t", "\u00a0", "\u200b", ""),
        ("☃", "\u0301", "ﬁ", "①", "😀", "7½"),
    )
    lines = list(SENTENCES)
    while len(lines) < count:
        own = [words[i] for i in draw.integers(len(words), size=int(draw.integers(1, 9)))]
        own += [odd[int(draw.integers(len(odd)))]] * int(draw.random() < 0.4)
        lines.append(glue[int(draw.integers(len(glue)))].join(draw.permutation(own).tolist()))
    return lines


def train_sentencepiece(kind: str = "bpe") -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(mixed_lines(300)[: 13 * 8]), model_writer=model, model_type=kind,
        vocab_size=600, character_coverage=0.999, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return model.getvalue()


def write_m2m(folder: Path, **changes: Any) -> list[str]:
    """Write a folder of WMT21's M2M-100, whose languages are listed nowhere; return its subwords.

    fairseq's vocabulary lacks some subwords of SentencePiece. Eight languages follow it.
    """
    write_nllb(folder)
    (folder / "tokenizer.json").unlink()
    model = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    pieces = [model.id_to_piece(index) for index in range(3, len(model) - 9)]
    subwords = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    ids = {token: index for index, token in enumerate(subwords)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    options = {"tokenizer_class": "M2M100Tokenizer", "language_codes": "wmt21"}
    (folder / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(values | changes), encoding="utf-8")
    return subwords


def write_nllb(folder: Path, **changes: Any) -> Path:
    """Write an NLLB-200 folder with random weights, in shards, the same everywhere."""
    folder.mkdir(parents=True)
    (folder / "sentencepiece.bpe.model").write_bytes(train_sentencepiece())
    names = (*LANGUAGES, "<mask>")
    tokens = [{"id": 601 + index, "content": name} for index, name in enumerate(names)]
    values = settings(KINDS["tied, relu, half"], NUM_TOKENS)
    values |= {"model_type": "m2m_100", "pad_token_id": 1, "decoder_start_token_id": 2}
    values |= {"num_beams": 2, "max_length": 30, "decoder_layerdrop": 0.05, **changes}
    for name, content in (
        ("config.json", values),
        ("tokenizer.json", {"added_tokens": tokens}),
        ("tokenizer_config.json", {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn"}),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    tensors = weights(KINDS["tied, relu, half"], NUM_TOKENS, seed=1)
    del tensors["final_logits_bias"]
    for side, value in (("encoder", 0.1), ("decoder", 0.2)):
        tensors[f"model.{side}.layer_norm.weight"] = np.full(DIM, 1 + value, np.float32)
        tensors[f"model.{side}.layer_norm.bias"] = np.full(DIM, value, np.float32)
    shards = sorted(tensors)[::2], sorted(tensors)[1::2]
    for number, own in enumerate(shards, 1):
        part = {name: tensors[name] for name in own}
        save_file(part, folder / f"model-0000{number}-of-00002.safetensors", {"format": "pt"})
    return folder
