from pathlib import Path

import pytest

from nmt.config.data import TokenizerConfig
from nmt.errors import ConfigError
from nmt.extras.inspection.command import make_part
from nmt.extras.inspection.options import VIEWS, InspectOptions
from nmt.extras.inspection.subject import Subject
from nmt.text.tokenizer import load_tokenizers, train_sentencepiece
from tests.inference.conftest import sentences

CONFIG = Path(__file__).parents[3] / "configs" / "hello.yaml"


@pytest.mark.parametrize(
    "name", [name for name, what in VIEWS.items() if what.needs in ("model", "sentence")]
)
def test_a_configuration_says_that_it_has_no_weights(name: str) -> None:
    with pytest.raises(ConfigError, match="needs a trained model"):
        make_part(name, Subject(CONFIG, InspectOptions(source="merci")))


def test_a_configuration_has_a_structure_without_values() -> None:
    structure = Subject(CONFIG).structure
    assert {parameter.device.type for parameter in structure.parameters()} == {"meta"}


def test_a_layer_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"no layer 3.*\n.*1 to 2"):
        Subject(CONFIG, InspectOptions(layer=3)).check()


def test_the_tag_is_read_too_and_those_there_are_are_named(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=330, user_defined_symbols=("<2de>", "<2en>", "<bt>"))
    train_sentencepiece(iter(sentences(300)), tmp_path / "joint.model", config, threads=1)
    tagged, line = load_tokenizers(tmp_path), "der Hund"

    def subject(tag: str | None) -> Subject:
        found = Subject(CONFIG, InspectOptions(source=line, tag=tag))
        vars(found)["tokenizers"] = tagged
        return found

    plain, asked = subject(None).source_ids, subject("de")
    asked.check()
    assert asked.source_ids == [4, *plain]
    assert asked.source_labels[0] == "<2de>"
    with pytest.raises(ConfigError, match="no tag 'fr'") as caught:
        subject("fr").check()
    assert (caught.value.exit_code, caught.value.fix) == (2, "Use one of <2de>, <2en>, <bt>.")
