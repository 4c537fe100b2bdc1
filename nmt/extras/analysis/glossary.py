"""Compliance with a glossary: the share of its terms that stand in the translations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nmt.commands.evaluate import EvaluatedSet
from nmt.inference.glossary import Glossary, count_forms
from nmt.metrics.metric import format_score, label_of
from nmt.metrics.result import ReportSection

_Lines = Sequence[str]
_MEANING = (
    "glossary: of the terms that occur in the source, those whose translation contains a form of "
    "the target term. Each model has also translated without the glossary."
)


def glossary_section(scored: EvaluatedSet) -> ReportSection:
    """Compare each model with its translations without the glossary, and with the reference."""
    test = scored.test
    source = test.source or ()
    labels = map(label_of, scored.metrics)
    rows = [["system", "terms", "compliance", *labels]]
    values = []
    # The first systems are the models; files of translations after them have no glossary.
    for model, system in zip(scored.models, scored.systems, strict=False):
        name = f"{system.name} without the glossary"
        plain = model.translate(f"{test.name} without the glossary", source, test, glossary=None)
        texts = {system.name: system.lines, name: plain.lines}
        texts["reference"] = test.references[0]
        glossary = model.loading["glossary"]
        languages = model.config.languages
        for name, lines in texts.items():
            num_terms, num_placed = compliance(glossary, source, lines, languages)
            share = num_placed / max(1, num_terms)
            row = [name, f"{num_terms:,}", f"{share:.1%}"]
            scores = {}
            for scorer in scored.scorers:
                score = scorer.score(lines).value
                scores[scorer.name] = score
                row.append(format_score(scorer.name, score))
            rows.append(row)
            entry = {"system": name, "terms": num_terms, "placed": num_placed}
            values.append({**entry, "scores": scores})
    return ReportSection("glossary", "Glossary", rows, values, _MEANING)


def compliance(
    glossary: Glossary, source: _Lines, lines: _Lines, languages: tuple[str, str]
) -> tuple[int, int]:
    """Return the number of terms in the source, and how many of them the translations contain.

    >>> compliance(Glossary({"Hund": ("dog",)}), ["Hund und Hund"], ["Dog and cat"], ("de", "en"))
    (2, 1)
    """
    num_terms = 0
    num_placed = 0
    source_language, target_language = languages
    for source_line, line in zip(source, lines, strict=True):
        terms = Counter(
            frozenset(forms) for *_, forms in glossary.find(source_line, source_language)
        )
        for forms, number in terms.items():
            num_terms += number
            num_placed += min(number, count_forms(forms, line, target_language))
    return num_terms, num_placed
