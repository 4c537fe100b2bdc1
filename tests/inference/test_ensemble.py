"""Several models as one."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch

from nmt.errors import CheckpointError, ConfigError
from nmt.inference.engine import EngineOptions, Ensemble, Needs
from nmt.inference.request import Result
from nmt.inference.stepper import Mixture, ModelStepper
from nmt.inference.torch_engine import TorchEngine, load_torch
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.inference.conftest import OPTIONS, sentences
from tests.inference.models import run_config, save_run, small_model, train_tokenizer

Mean = Literal["arithmetic", "geometric"]
MEANS: tuple[Mean, ...] = ("arithmetic", "geometric")
LINES = sentences(10, seed=9)


def are_equal(found: list[Result], expected: list[Result]) -> bool:
    scores = [[result.score for result in side] for side in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    return [result.text for result in found] == [result.text for result in expected]


def test_means_are_those_of_the_definition() -> None:
    """Worked out by hand: 1/2 and 1/2 with 4/5 and 1/5, weights 1/4 and 3/4."""
    first, second = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.8, 0.2]).log()
    arithmetic = Mixture((0.25, 0.75)).combine([first.clone(), second.clone()])
    assert arithmetic.exp().tolist() == pytest.approx([0.725, 0.275])
    geometric = Mixture((0.25, 0.75), "geometric").combine([first, second])
    parts = [0.5**0.25 * 0.8**0.75, 0.5**0.25 * 0.2**0.75]
    assert geometric.exp().tolist() == pytest.approx([part / sum(parts) for part in parts])


@pytest.mark.parametrize("mean", MEANS)
def test_ensembles_ignore_order_and_exclude_tokens_impossible_in_one_model(mean: Mean) -> None:
    ended, shares = torch.full((1, 1, 6), -torch.inf), (0.2, 0.5, 0.3)
    ended[..., EOS_ID] = -2.0
    values = [torch.randn(1, 1, 6).log_softmax(-1) for _ in range(3)]
    expected = Mixture(shares, mean).combine([each.clone() for each in values])
    for order in itertools.permutations(range(3)):
        mixture = Mixture(tuple(shares[i] for i in order), mean)
        torch.testing.assert_close(mixture.combine([values[i].clone() for i in order]), expected)
        found = mixture.combine([(ended, *values)[i].clone() for i in order])
        assert found.isfinite().nonzero().tolist() == [[0, 0, EOS_ID]]


def test_the_fewest_positions_of_an_ensemble_limit_the_output(tokenizers: Tokenizers) -> None:
    """The model with a learned table cannot go on, and the others must not without it."""
    models = [small_model(tokenizers, shape) for shape in ("learned", "modern")]
    for model in models:
        with torch.no_grad():
            model.output_weight[EOS_ID] = 0.0
    options = OPTIONS.model_copy(update={"max_length_offset": 80})
    for order in (models, models[::-1]):
        ((found,),) = TorchEngine(*order, mixture=Mixture((0.5, 0.5))).search([[5, 6, 7]], options)
        assert len(found.ids) == 39


@torch.inference_mode()
def test_attention_of_an_ensemble_is_averaged(tokenizers: Tokenizers) -> None:
    """However unlike their shares."""
    models = [small_model(tokenizers, shape) for shape in ("plain", "wide")]
    batch, tokens = Packed.from_rows([[5, 6, EOS_ID], [7, EOS_ID]]), torch.full((2, 1), BOS_ID)

    def coverage(*chosen: Transformer, mixture: Mixture | None = None) -> torch.Tensor:
        stepper = ModelStepper(*chosen, mixture=mixture, with_coverage=True)
        return stepper.coverage(stepper.step(stepper.start(batch), tokens)[1])

    first, second = (coverage(model) for model in models)
    torch.testing.assert_close(coverage(*models, mixture=Mixture((0.9, 0.1))), (first + second) / 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders: two shapes over one vocabulary, another vocabulary, another direction."""
    place = tmp_path_factory.mktemp("runs")
    for name, seed in (("same", 0), ("other", 1)):
        train_tokenizer(place / "tokenizers" / name, seed)
    config = run_config(max_length=32)
    turned = config.model_copy(update={"source_language": "en", "target_language": "de"})
    made = {
        "a": ("plain", "same", config), "b": ("modern", "same", run_config(max_length=16)),
        "other": ("plain", "other", config), "turned": ("plain", "same", turned),
    }  # fmt: skip
    found: dict[str, Path] = {}
    for name, (shape, tokenizer, settings) in made.items():
        words = place / "tokenizers" / tokenizer
        model = small_model(load_tokenizers(words), shape, seed=len(found))
        found[name] = save_run(place / name, model, words, settings)
    return found


def load(folder: Path, ensemble: Ensemble | None = None) -> Translator:
    return Translator.load(folder, device="cpu", ensemble=ensemble, engine="torch")


def test_folders_are_loaded_together(folders: dict[str, Path]) -> None:
    first, second = folders["a"], folders["b"]
    alone = load(first).translate(LINES)
    together = load(first, Ensemble((second,))).translate(LINES)
    assert [result.text for result in together] != [result.text for result in alone]
    assert are_equal(load(second, Ensemble((first,))).translate(LINES), together)
    assert are_equal(load(first, Ensemble((first,))).translate(LINES), alone)
    assert load(first, Ensemble((second,), (1, 0))).translate(LINES) == alone
    assert load(first, Ensemble((second, second), (4, 0, 0))).translate(LINES) == alone


def test_the_shortest_source_limit_of_an_ensemble_applies(folders: dict[str, Path]) -> None:
    for weights, longest in (((), 16), ((1, 0), 32)):
        options = EngineOptions(device="cpu", ensemble=Ensemble((folders["b"],), weights))
        assert load_torch(folders["a"], options, Needs()).max_length == longest


def test_all_mismatched_models_are_reported(folders: dict[str, Path], tmp_path: Path) -> None:
    wrong = (folders["b"], folders["other"], folders["turned"])
    with pytest.raises(CheckpointError, match="languages or vocabulary differ") as found:
        load(folders["a"], Ensemble(wrong))
    assert [str(folder) in found.value.problem for folder in wrong] == [False, True, True]
    load(folders["a"], Ensemble((Path(shutil.copytree(folders["b"], tmp_path / "elsewhere")),)))


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 2.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_invalid_weights_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="a weight is negative"):
        Ensemble((Path("b"),), weights).shares()
    with pytest.raises(ConfigError, match=r"3 weights \(1,2,3\) for 2 models"):
        Ensemble((Path("b"),), (1.0, 2.0, 3.0)).shares()
