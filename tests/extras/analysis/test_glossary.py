"""Compliance with a glossary, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, cast

from nmt.commands.evaluation_set import EvaluationSet
from nmt.extras.analysis.glossary import compliance, glossary_section
from nmt.inference.glossary import Glossary
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.metrics.result import System

GLOSSARY = Glossary.parse(["Hund|Hunde\tdog|dogs", "Katze\tcat"])
SOURCE = ("Hunde sehen einen Hund.", "Die Katze schläft.", "Nichts.")
REFERENCE = ("Dogs see a dog.", "The cat sleeps.", "Nothing.")
WITHOUT = ["Dogs see a hound.", "The tomcat sleeps.", "Nothing."]


class Model:
    """Translates like the reference, but for the glossary."""

    config = SimpleNamespace(languages=("de", "en"))
    loading: ClassVar = {"glossary": GLOSSARY}

    def translate(
        self, _name: str, lines: tuple[str, ...], _test: EvaluationSet, *, glossary: None
    ) -> System:
        assert lines == SOURCE
        assert glossary is None
        return System("model", WITHOUT)


def test_terms_are_counted_as_often_as_the_source_has_them() -> None:
    languages = ("de", "en")
    assert compliance(GLOSSARY, SOURCE, REFERENCE, languages) == (3, 3)
    assert compliance(GLOSSARY, SOURCE, WITHOUT, languages) == (3, 1)
    assert compliance(GLOSSARY, SOURCE, ["dog dog dog dog"] * 3, languages) == (3, 2)


def test_a_model_is_compared_with_itself_without_the_glossary() -> None:
    scorers = [MetricScorer("bleu", [REFERENCE], MetricOptions())]
    test = EvaluationSet(name="test", source=SOURCE, references=(REFERENCE,))
    system = System("model", REFERENCE)
    scored: Any = SimpleNamespace(
        test=test, models=[Model()], systems=[system], scorers=scorers, metrics={"bleu": "bleu"}
    )
    section = glossary_section(cast(Any, scored))
    head, with_glossary, without, reference = section.rows
    assert head == ["system", "terms", "compliance", "BLEU"]
    assert with_glossary == ["model", "3", "100.0%", "100.00"]
    assert without[:3] == ["model without the glossary", "3", "33.3%"]
    assert 0 < float(without[3]) < 60
    assert reference == ["reference", "3", "100.0%", "100.00"]
    assert [value["placed"] for value in section.values] == [3, 1, 3]
