"""Views, against what the other commands say of the same model, and what a view lacks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nmt.checkpoint.model_folder import CONFIDENCE
from nmt.config.data import TokenizerConfig
from nmt.errors import ConfigError, DeviceError
from nmt.extras.inspection import attention
from nmt.extras.inspection.attention import head_losses, look_shares
from nmt.extras.inspection.command import inspect, make_part
from nmt.extras.inspection.figure import (
    Bars,
    Grid,
    Heatmap,
    Links,
    Part,
    Steps,
    Table,
    TextFigure,
    Tree,
)
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.options import VIEWS, InspectOptions
from nmt.extras.inspection.prediction import losses, smoothed_target
from nmt.extras.inspection.sublayers import distance, entropy, record, score
from nmt.inference.confidence import ConfidenceModel, Term
from nmt.inference.scorer import Scorer
from nmt.inference.translator import Translator
from nmt.text.tokenizer import load_tokenizers
from tests.extras.inspection.conftest import SHAPES
from tests.inference.conftest import sentences
from tests.learning import train_sentencepiece
from tests.model.small import small_model

F_ = TypeVar("F_")
SOURCE, TARGET = "Hund und Katze schläft", "die Katze läuft nicht"
_CROSS = "Cross-attention (decoder to source), layer 3"


def part_of(folder: Path, name: str, **choice: Any) -> Part:
    return make_part(name, Inspected(folder, InspectOptions(source=SOURCE, **choice)))


def figures_of(part: Part, kind: type[F_]) -> list[F_]:
    return [figure for figure in part.figures if isinstance(figure, kind)]


@pytest.mark.parametrize("shape", SHAPES)
def test_alignment_and_attention_are_of_translate(folders: dict[str, Path], shape: str) -> None:
    wanted = {"alignments", "attention"}
    (result,) = Translator.load(folders[shape], engine="torch", outputs=wanted).translate([SOURCE])
    assert result.text
    assert result.alignment is not None
    part = part_of(folders[shape], "alignment")
    (pharaoh,) = figures_of(part, TextFigure)
    assert pharaoh.lines[0] == " ".join(f"{a}-{b}" for a, b in result.alignment)
    (words,) = figures_of(part, Heatmap)
    assert words.columns == SOURCE.split()
    assert words.rows == result.text.split()
    for row, expected in zip(words.values, result.attention or (), strict=True):
        assert list(row) == pytest.approx(list(expected), abs=1e-5)
    linked = {
        (a, b)
        for a, row in enumerate(figures_of(part, Links)[0].weights["link"])
        for b, weight in enumerate(row)
        if weight
    }
    assert linked == set(result.alignment)
    # The neighbouring pictures agree: each line leads to the darkest cell of a row.
    values = np.array(words.values, np.float64)
    darkest = {(int(column), row) for row, column in enumerate(values.argmax(1))}
    assert linked == darkest


def test_all_pictures_of_attention_have_one_scale(folders: dict[str, Path]) -> None:
    figures = list(part_of(folders["post"], "attention", target=TARGET).figures)
    figures += part_of(folders["post"], "alignment").figures
    for steps in [figure for figure in figures if isinstance(figure, Steps)]:
        figures += [inner for step in steps.steps for inner in step.figures]
    maps = [figure for figure in figures if isinstance(figure, Heatmap)]
    assert len(maps) > 3
    assert {figure.bounds for figure in maps} == {(0, 1)}


def test_the_probabilities_of_words_are_those_of_score(folders: dict[str, Path]) -> None:
    """The product over all words and EOS is the probability of the sentence."""
    (bars,) = figures_of(part_of(folders["post"], "alignment", target=TARGET), Bars)
    assert bars.labels == [*TARGET.split(), "EOS"]
    (scored,) = Scorer.load(folders["post"]).score([(SOURCE, TARGET)])
    total = sum(math.log(prob) for prob in bars.values["probability"])
    assert total == pytest.approx(scored.log_prob, abs=1e-4)
    end = scored.tokens[-1].log_prob
    assert bars.values["probability"][-1] == pytest.approx(math.exp(end), rel=1e-4)


@pytest.mark.parametrize("low", [-20, -0.1])
def test_the_confidence_is_that_of_translate(folders: dict[str, Path], low: float) -> None:
    """Of a sentence that is rated, and of one that is less probable than all fitted ones."""
    term = Term(weight=10.0, low=-100.0, high=100.0)
    probable = replace(term, low=low)
    model = ConfidenceModel(
        intercept=60.0, log_prob=probable, probability=term, length=term, ratio=term, num_lines=50
    )
    path = folders["post"] / CONFIDENCE
    path.write_text(model.text(), encoding="utf-8")
    try:
        (result,) = Translator.load(folders["post"], engine="torch").translate([SOURCE])
        (bars,) = figures_of(part_of(folders["post"], "alignment"), Bars)
    finally:
        path.unlink()
    if result.confidence is None:
        assert bars.note.startswith(
            f"No confidence: this sentence is unlike the validation set ({result.unrated})"
        )
    else:
        assert bars.note.startswith(f"Confidence: {result.confidence:.1f}. ")
    assert (result.confidence is None) == (low == -0.1)


def test_rows_name_the_token_read_and_the_token_predicted(folders: dict[str, Path]) -> None:
    part = part_of(folders["post"], "attention", target=TARGET)
    assert [grid.rows for grid in figures_of(part, Grid)] == [
        ["layer 1", "layer 2 (top)"], *[["layer 1", "layer 2", "layer 3 (top)"]] * 2,
    ]  # fmt: skip
    _, decoder = figures_of(part, Steps)[1].steps[0].figures
    assert isinstance(decoder, Heatmap)
    assert decoder.rows[0].startswith("BOS")
    assert decoder.rows[-1].endswith("EOS")
    assert decoder.columns == ["BOS", *[row.split()[2] for row in decoder.rows[:-1]]]
    for before, after in pairwise(decoder.rows):
        assert before.split()[2] == after.split()[0]
    for number, row in enumerate(decoder.values, 1):
        assert sum(x for x in row if x is not None) == pytest.approx(1, abs=1e-5)
        assert [x is None for x in row] == [place >= number for place in range(len(row))]


def test_only_the_chosen_layer_and_heads_are_drawn(folders: dict[str, Path]) -> None:
    part = part_of(folders["post"], "attention", target=TARGET, layer=1, head=(2, 4))
    for grid, steps in zip(figures_of(part, Grid), figures_of(part, Steps), strict=True):
        assert (grid.rows, grid.columns) == (["layer 1"], ["head 2", "head 4"])
        ((arcs, *maps),) = [step.figures for step in steps.steps]
        assert isinstance(arcs, Links)
        assert list(arcs.weights) == ["head 2", "head 4"]
        assert len(maps) == 2
    with pytest.raises(ConfigError, match="Head 5 does not exist"):
        part_of(folders["post"], "attention", target=TARGET, head=(5,))


def test_too_many_heads_are_reduced_to_the_first_of_the_top_layer(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.extras.inspection.attention._MAX_HEADS", 3)
    grid = figures_of(part_of(folders["post"], "attention", target=TARGET), Grid)[0]
    assert (grid.rows, grid.columns) == (["layer 2 (top)"], ["head 1", "head 2", "head 3"])
    assert grid.note.startswith("Only layer 2, 3 heads")


def test_losses_of_a_target_are_those_of_score_and_of_training(folders: dict[str, Path]) -> None:
    folder = folders["post"]
    part = part_of(folder, "distributions", target=TARGET, checkpoint=("untrained", "best"))
    untrained, best = figures_of(part, Table)
    (scored,) = Scorer.load(folder).score([(SOURCE, TARGET)])
    found = [row[2] for row in best.rows[:-1]]
    assert found == pytest.approx([token.log_prob for token in scored.tokens], abs=1e-5)
    assert best.rows[-1][2] == pytest.approx(scored.log_prob, abs=1e-4)
    assert untrained.rows[-1][2] != best.rows[-1][2]


def test_cross_entropy_is_divergence_and_entropy() -> None:
    """Of 4 tokens, smoothed by 0.2: 0.85 and three times 0.05."""
    logits = torch.tensor([[0.3, -1.0, 0.2, 2.0], [1.0, 1.0, 1.0, 1.0]])
    right, other, own = smoothed_target(4, 0.2)
    assert (right, other) == pytest.approx((0.85, 0.05))
    assert own == pytest.approx(-(0.85 * math.log(0.85) + 3 * 0.05 * math.log(0.05)))
    found = losses(logits, [3, 0], 0.2)
    expected = F.cross_entropy(logits, torch.tensor([3, 0]), label_smoothing=0.2, reduction="none")
    assert found[:, 1].tolist() == pytest.approx(expected.tolist())
    target = torch.tensor([[0.05, 0.05, 0.05, 0.85], [0.85, 0.05, 0.05, 0.05]])
    divergence = F.kl_div(logits.log_softmax(-1), target, reduction="none").sum(1)
    assert found[:, 2].tolist() == pytest.approx(divergence.tolist(), abs=1e-6)
    # Token 3 competes with no other, 0 only with 3.
    assert found[:, 0].tolist() == pytest.approx([0.0, math.log(0.5)])


@torch.no_grad()
def test_the_arithmetic_of_a_query_by_hand(folders: dict[str, Path]) -> None:
    """Layer 1, head 2 of a post-norm model: from the embeddings, number by number."""
    inspected = Inspected(
        folders["post"], InspectOptions(source=SOURCE, target=TARGET, layer=1, head=(2,))
    )
    part, model = make_part("score", inspected), inspected.model
    rows = []
    for place, token in enumerate(inspected.source_ids):
        angles = [place / 10_000 ** (2 * i / 32) for i in range(16)]
        waves = [wave for angle in angles for wave in (math.sin(angle), math.cos(angle))]
        rows.append(model.source_vectors[token] * 32**0.5 + torch.tensor(waves))
    attention = model.encoder[0].get_submodule("self_attention")
    fused = attention.get_parameter("query_key_value.weight")
    assert not attention.get_parameter("query_key_value.bias").any()
    x = torch.stack(rows)
    query, key, value = (x @ fused[start + 8 : start + 16].T for start in (0, 32, 64))
    steps, all_heads = figures_of(part, Steps)
    for place, step in enumerate(steps.steps):
        _, table = step.figures
        assert isinstance(table, Table)
        products = [sum(float(a * b) for a, b in zip(query[place], k, strict=True)) for k in key]
        exps = [math.exp(product / math.sqrt(8)) for product in products]
        weights = [each / sum(exps) for each in exps]
        *cells, total = zip(*[row[2:5] for row in table.rows], strict=True)
        assert cells[0][:-1] == pytest.approx(products, abs=1e-3)
        assert cells[1][:-1] == pytest.approx([p / math.sqrt(8) for p in products], abs=1e-3)
        assert total[:-1] == pytest.approx(weights, abs=1e-4)
        assert total[-1] == pytest.approx(1)
        mixed = sum(w * v for w, v in zip(weights, value, strict=True))
        assert isinstance(mixed, torch.Tensor)
        assert numbers(table.rows[-1][-1]) == pytest.approx(mixed[:6].tolist(), abs=2e-3)
        last = all_heads.steps[place].figures[0]
        assert isinstance(last, Table)
        named = {row[0]: row for row in last.rows}
        assert numbers(named["head 2"][-1]) == pytest.approx(mixed[:6].tolist(), abs=2e-3)
        total_row = (
            named["residual stream"][-1],
            named["multiplied by W^O"][-1],
            named["sum of the last two"][-1],
        )
        before, added, both = map(numbers, total_row)
        assert [a + b for a, b in zip(before, added, strict=True)] == pytest.approx(both, abs=2e-3)


def numbers(cell: object) -> list[float]:
    return [float(word) for word in str(cell).strip("[]").removesuffix(" ...").split()]


def test_gradients_are_those_of_a_backward_pass(folders: dict[str, Path]) -> None:
    """For the weights of each sublayer. The pass leaves no gradients in the model."""
    inspected = Inspected(folders["rotary-grouped"], InspectOptions(source=SOURCE, target=TARGET))
    encoder, decoder = figures_of(make_part("flow", inspected), Table)
    model = inspected.model
    assert all(parameter.grad is None for parameter in model.parameters())
    gold = torch.tensor([*inspected.target_ids, 3])
    F.cross_entropy(model.logits(model(inspected.source, inspected.target)), gold).backward()
    for table, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        names = ["self_attention", "cross_attention", "feed_forward"]
        modules = [getattr(layer, n) for layer in stack for n in names if hasattr(layer, n)]
        for row, module in zip(table.rows, modules, strict=True):
            gradients = torch.cat([p.grad.flatten() for p in module.parameters()])
            assert row[-1] == pytest.approx(float(gradients.norm()), rel=1e-4)
            assert row[4] == pytest.approx(float(row[2] or 0) / float(row[1] or 1))


def test_entropy_and_distance_of_known_weights() -> None:
    sharp, even = torch.eye(4), torch.full((4, 4), 0.25)
    assert entropy(torch.stack((sharp, even))).tolist() == pytest.approx([0, math.log(4)])
    # Distances 0 to 3, 0 to 2 and 1, ...: (6 + 4 + 4 + 6) / 16
    assert distance(torch.stack((sharp, even))).tolist() == pytest.approx([0, 20 / 16])
    assert distance(torch.tensor([[[1.0, 0, 0, 0], [0, 0, 0, 1.0]]])).tolist() == pytest.approx([0])


def test_heads_are_measured_by_leaving_them_out() -> None:
    """A head whose rows of W^O are 0 has no loss. Shares are means over all tokens."""
    model = small_model()
    pairs = [([7, 8, 9], [20, 21]), ([10, 11, 12, 13, 14], [22, 23, 24])]
    with torch.no_grad():
        model.decoder[0].get_submodule("self_attention").get_parameter("output.weight")[:, 8:16] = 0
    found = head_losses(model, pairs)
    assert found["decoder"][0][1] == 0
    assert all(x != 0 for row in (found["cross"] + found["encoder"]) for x in row)
    looks = look_shares(model, pairs)
    assert {kind: shares.shape for kind, shares in looks.items()} == dict.fromkeys(looks, (2, 4, 4))
    # The decoder reads BOS and the tokens before: of 3 + 4 rows, all of two go to BOS.
    assert bool((looks["decoder"][0, :, 2] > 2 / 7).all())
    assert all(bool(((shares >= 0) & (shares <= 1)).all()) for shares in looks.values())


@pytest.mark.long
def test_the_trace_ends_in_the_translation_with_second_searches(folders: dict[str, Path]) -> None:
    translator = Translator.load(folders["post"], engine="torch", sentences="keep")
    lines, retried = sentences(12, seed=5, longest=4), 0
    for line, result in zip(lines, translator.translate(lines), strict=True):
        inspected = Inspected(folders["post"], InspectOptions(source=line))
        part = make_part("trace", inspected)
        searches = figures_of(part, Table)
        taken = searches[-1 if result.retried else 0]
        assert taken.rows[0][0] == inspected.tokenizers.target.decode(inspected.target_ids)
        assert result.text == str(taken.rows[0][0]).strip()
        notes = [text for text in figures_of(part, TextFigure) if text.title == "Second search"]
        assert len(notes) == len(searches) - 1
        assert len({figure.title for figure in part.figures}) == len(part.figures)
        says = ["The first row is the translation" in table.note for table in searches]
        assert says == [table is taken for table in searches]
        retried += bool(result.retried)
    assert retried


def test_a_tree_has_ends_and_the_translation_in_it(folders: dict[str, Path]) -> None:
    inspected = Inspected(folders["post"], InspectOptions(source=SOURCE))
    part = make_part("trace", inspected)
    taken = -1 if any("second" in note for note in figures_of(part, TextFigure)[-1].lines) else 0
    tree, ended = figures_of(part, Tree)[taken], figures_of(part, Table)[taken]
    best = [node.label for node in tree.nodes if node.kind == "best"]
    assert best == ["BOS", *(label.split()[2] for label in inspected.target_labels)]
    assert sum(node.label == "EOS" for node in tree.nodes) == len(ended.rows)
    assert ended.rows[0][0] == inspected.tokenizers.target.decode(inspected.target_ids)
    parents = {node.parent for node in tree.nodes}
    for place, node in enumerate(tree.nodes):
        assert node.parent is None or node.parent < place
        assert node.kind != "kept" or place in parents


def test_a_layer_above_the_encoder_is_drawn_for_the_decoder(folders: dict[str, Path]) -> None:
    grids = figures_of(part_of(folders["post"], "attention", target=TARGET, layer=3), Grid)
    assert [grid.rows for grid in grids] == [["layer 3 (top)"]] * 2
    assert part_of(folders["post"], "score", target=TARGET, layer=3).figures


def test_score_shows_the_top_layer_and_the_first_head_unless_others_are_chosen(
    folders: dict[str, Path],
) -> None:
    for choice, place in (
        ({}, "Encoder layer 2 (top), head 1:"),
        ({"layer": 1}, "Encoder layer 1, head 1:"),
        ({"head": (3,)}, "Encoder layer 2 (top), head 3:"),
    ):
        options = InspectOptions(source="Hund", target="dog", **choice)
        figures = score(Inspected(folders["post"], options))
        first = next(figure for figure in figures if isinstance(figure, Steps))
        assert first.title.startswith(place)


def test_pairs_of_a_test_set_get_its_tag_or_the_chosen_one(tmp_path: Path) -> None:
    """Ids 4 and 5 are <2de> and <2en>."""
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=("<2de>", "<2en>", "<bt>"))
    train_sentencepiece(iter(sentences(300)), tmp_path / "joint.model", config, threads=1)
    tagged = load_tokenizers(tmp_path)
    symbols = 'tokenizer.user_defined_symbols=["<2de>", "<2en>"]'
    changes = (
        symbols,
        "tokenizer.vocab_size=20",
        "data.test.hello.tag=<2en>",
        "filters.max_length=100",
    )
    for tag, start in ((None, 5), ("de", 4)):
        inspected = Inspected(CONFIG, InspectOptions(tag=tag, set_=changes))
        vars(inspected)["tokenizers"] = tagged
        name, pairs = attention._test_pairs(inspected)
        assert name == "hello"
        sources = [source for source, _ in pairs]
        assert [source[0] for source in sources] == [start] * 2
        assert sources[0][1:] == tagged.source.encode("merci")


def test_heads_reads_the_first_short_test_pairs(folders: dict[str, Path], tmp_path: Path) -> None:
    """Of four pairs the second is too long and the third blank; --limit 1 takes the first."""
    for side in "de", "en":
        lines = ["Hund läuft", "Hund " * 40, "", "Katze schläft"]
        (tmp_path / f"a.{side}").write_text("\n".join(lines) + "\n")
    for limit, count in ((200, ": 2."), (1, ": 1.")):
        part = make_part("heads", Inspected(folders["post"], InspectOptions(limit=limit)))
        tables = figures_of(part, Table)
        assert [len(table.rows) for table in tables] == [8, 12, 12]
        # The importance of the heads as colours, with the numbers of the tables and one scale.
        maps = figures_of(part, Heatmap)
        assert len({figure.bounds for figure in maps}) == 1
        for figure, table in zip(maps, tables, strict=True):
            assert [x for row in figure.values for x in row] == [row[-1] for row in table.rows]
        assert tables[0].note.endswith(count)
        assert all(row[1] is None for row in tables[2].rows)  # there is no previous token
    with pytest.raises(ConfigError, match="test set"):
        make_part("heads", Inspected(folders["post"], InspectOptions(test="other")))


def test_json_has_the_figures_of_the_last_checkpoint_and_says_so(folders: dict[str, Path]) -> None:
    """Under the name of the view; None is null."""
    output, names = Path("a.json"), ("best", "untrained")
    choice: dict[str, Any] = {"source": SOURCE, "target": TARGET, "checkpoint": names}
    inspect(InspectOptions(model=folders["post"], view="attention", output=output, **choice))
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["facts"]["Checkpoint"] == "untrained"
    assert written["facts"]["Source"] == SOURCE
    assert Path(written["facts"]["Path"]).is_dir()  # two runs can have the same name
    part = part_of(folders["post"], "attention", target=TARGET, checkpoint=("untrained",))
    found = [x["values"] for x in written["parts"]["attention"]["figures"] if x["kind"] == "grid"]
    grids = figures_of(part, Grid)
    assert len(found) == len(grids)
    for values, grid in zip(found, grids, strict=True):
        # None becomes NaN. The last bit of a sum depends on where the numbers are in memory.
        shown = np.array(grid.values, np.float64)
        np.testing.assert_allclose(np.array(values, np.float64), shown, rtol=1e-5)


def test_a_sentence_longer_than_those_of_training_is_refused(folders: dict[str, Path]) -> None:
    inspected = Inspected(folders["post"], InspectOptions(source="Hund " * 33))
    with pytest.raises(ConfigError, match=r"`source`.* 32 "):
        make_part("attention", inspected)


CONFIG = Path(__file__).parents[3] / "configs" / "hello.yaml"


def test_bars_and_table_of_a_token_show_the_same_probability(folders: dict[str, Path]) -> None:
    part = part_of(folders["post"], "distributions", target=TARGET, checkpoint=("best",))
    (steps,), (table,) = figures_of(part, Steps), figures_of(part, Table)
    for step, row in zip(steps.steps, table.rows, strict=False):
        (bars,) = step.figures
        assert isinstance(bars, Bars)
        assert bars.values["best"][0] == pytest.approx(row[1], rel=1e-5)  # the right token is first
        assert sum(bars.values["best"]) <= 1 + 1e-5


def test_a_trace_shows_the_softmax_of_its_first_hypothesis(folders: dict[str, Path]) -> None:
    part = part_of(folders["post"], "trace")
    for step in figures_of(part, Steps)[0].steps:
        bars, table = step.figures
        assert isinstance(bars, Bars)
        assert isinstance(table, Table)
        shown = zip(bars.labels, bars.values["probability"], strict=True)
        assert [f"{label} {prob:.4f}" for label, prob in shown] == list(table.rows[0][2:])


def test_a_page_opens_with_the_translation_and_folds_how_the_model_is_built(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    output = tmp_path / "page.html"
    inspect(InspectOptions(model=folders["post"], source=SOURCE, output=output))
    page = output.read_text(encoding="utf-8")
    top, folded = page.split("How it is built")
    assert re.findall(r'<section id="(\w+)"', top) == ["alignment", "attention", "trace"]
    assert re.findall(r'<section id="(\w+)"', folded)[0] == "vocabulary"
    links = re.findall(r'<a href="#(\w+)"', page)
    assert links == re.findall(r'<section id="(\w+)"', page)
    # A configuration has no sentence to translate: its views are not folded.
    inspect(InspectOptions(model=CONFIG, output=output))
    assert "How it is built" not in output.read_text(encoding="utf-8")


def test_the_beam_size_is_that_of_the_search(folders: dict[str, Path]) -> None:
    steps = figures_of(part_of(folders["post"], "trace", beam_size=2), Steps)[0].steps
    tables = [table for step in steps for table in step.figures if isinstance(table, Table)]
    assert max(len(table.rows) for table in tables) == 2


@pytest.mark.parametrize("name", ["shapes", "attention", "score", "flow"])
def test_an_untrained_configuration_reads_words(name: str) -> None:
    """hello.yaml is not prepared: each word is a token, and the source stands in for a target."""
    inspected = Inspected(CONFIG, InspectOptions(source="je suis je"))
    assert make_part(name, inspected).figures
    assert inspected.source_labels == ["je", "suis", "je", "EOS"]
    assert inspected.read_labels == ["BOS", "je", "suis", "je"]
    assert Inspected(CONFIG).load("untrained").output_weight.equal(inspected.model.output_weight)


def test_shapes_have_a_batch_and_heads_beside_the_packed_shapes(folders: dict[str, Path]) -> None:
    part = part_of(folders["rotary-grouped"], "shapes", target=TARGET)
    tables = {table.title: table for table in figures_of(part, Table)}
    rows = {row[0]: list(row[2:]) for row in tables[_CROSS].rows}
    inspected = Inspected(folders["rotary-grouped"], InspectOptions(source=SOURCE, target=TARGET))
    s, t = len(inspected.source_ids), len(inspected.target_ids) + 1
    assert rows["Q"] == ["(B, H, T, d_k)", f"(1, 4, {t}, 8)", f"({t}, 4, 8)"]
    assert rows["K"] == ["(B, G, S, d_k)", f"(1, 2, {s}, 8)", f"({s}, 2, 8)"]
    assert rows["A"] == ["(B, H, T, S)", f"(1, 4, {t}, {s})", ""]


def test_tensors_of_one_layer_are_those_of_the_whole_table_without_the_other_layers() -> None:
    def names(layer: int | None) -> list[str]:
        part = make_part("shapes", Inspected(CONFIG, InspectOptions(source="merci", layer=layer)))
        return [str(row[0]) for row in figures_of(part, Table)[-1].rows]

    whole = names(None)
    second = names(2)
    others = [name for name in whole if re.search(r"layer 1\b|\.0\.", name)]
    assert others
    assert second == [name for name in whole if name not in others]


@pytest.mark.parametrize(
    "name", [name for name, what in VIEWS.items() if what.needs in ("model", "sentence")]
)
def test_a_configuration_without_weights_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="needs a trained model"):
        make_part(name, Inspected(CONFIG, InspectOptions(source="merci")))


@pytest.mark.parametrize(
    ("tags", "problem", "fix"),
    [
        ("source", "attention needs the tag of the target language", "Set `tag` to <2en>."),
        ("both", "attention cannot draw models whose targets begin with a language tag", "vocabul"),
    ],
)
def test_models_with_language_tags_need_a_tag_or_are_refused(
    tags: str, problem: str, fix: str
) -> None:
    choice = InspectOptions(source="merci", set_=(f"data.language_tags={tags}",))
    refused = Inspected(CONFIG, choice).missing("pass", "attention")
    assert refused is not None
    assert problem in refused.problem
    assert fix in refused.fix
    assert Inspected(CONFIG, choice).missing("configuration", "parameters") is None
    if tags == "source":
        assert Inspected(CONFIG, replace(choice, tag="<2en>")).missing("pass", "attention") is None


def test_the_tag_is_part_of_the_source_and_an_unknown_tag_is_an_error(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=("<2de>", "<2en>", "<bt>"))
    train_sentencepiece(iter(sentences(300)), tmp_path / "joint.model", config, threads=1)
    tagged, line = load_tokenizers(tmp_path), "der Hund"

    def inspected(tag: str | None) -> Inspected:
        found = Inspected(CONFIG, InspectOptions(source=line, tag=tag))
        vars(found)["tokenizers"] = tagged
        return found

    plain, asked = inspected(None).source_ids, inspected("de")
    asked.check()
    assert asked.source_ids == [4, *plain]
    assert asked.source_labels[0] == "<2de>"
    with pytest.raises(ConfigError, match="no tag 'fr'") as caught:
        inspected("fr").check()
    assert (caught.value.exit_code, caught.value.fix) == (2, "Use a tag such as 2de, 2en, bt.")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_view_is_computed_on_the_chosen_number_of_threads(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    used = []
    load = Inspected.load

    def counted(self: Inspected, checkpoint: str) -> Any:
        used.append(torch.get_num_threads())
        return load(self, checkpoint)

    monkeypatch.setattr(Inspected, "load", counted)
    before = torch.get_num_threads()
    output = tmp_path / "attention.txt"
    folder = folders["post"]
    choice: dict[str, Any] = {"source": SOURCE, "target": TARGET, "output": output}
    inspect(InspectOptions(model=folder, view="attention", threads=threads, **choice))
    assert set(used) == {threads}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_and_the_sentences_are_on_the_chosen_device(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """The meta device takes the place of a GPU: it has no values, but refuses other devices."""
    meta = torch.device("meta")
    monkeypatch.setattr("nmt.extras.inspection.inspected.choose_device", lambda _: meta)
    monkeypatch.setattr("nmt.packed.move", torch.Tensor.to)  # without pinned memory
    choice = InspectOptions(source=SOURCE, target=TARGET)
    inspection = Inspected(folders[shape], choice)
    recording = record(inspection.model, inspection.source, inspection.target)
    for sublayer in recording.sublayers:
        if sublayer.kind:
            assert {tensor.device for tensor in sublayer.heads()} == {meta}
    assert inspection.load("untrained").output_weight.device == meta


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_missing_is_refused_as_by_score(folders: dict[str, Path]) -> None:
    folder = folders["post"]
    with pytest.raises(DeviceError) as expected:
        Scorer.load(folder, device="cuda")
    with pytest.raises(DeviceError) as refused:
        inspect(InspectOptions(model=folder, source=SOURCE, device="cuda"))
    assert (str(refused.value), refused.value.fix) == (str(expected.value), expected.value.fix)
