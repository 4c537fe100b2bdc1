"""The report of `nmt prepare` as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from nmt.data.findings import KEPT, READ
from nmt.data.prepare_report import PrepareReport
from nmt.report.page import Chart, Curve, render, render_chart

_MAX_LEAKS = 200
_WIDTH, _PLOT = 1000, (400, 300)


def render_report(report: PrepareReport) -> Markup:
    """Return ``report.html``: reasons, languages, ranges of lines, leakage, lengths, coverage."""
    read = sum(counts[READ] for counts in report.counts.values())
    kept = sum(counts[KEPT] for counts in report.counts.values())
    most = max((max(pair) for pair in report.lengths), default=1)
    leaks = report.leakage[:_MAX_LEAKS]
    return render(
        "corpus.html.j2",
        title="Corpora",
        facts=[
            {"name": "pairs read", "value": f"{read:,}", "note": ""},
            {"name": "kept", "value": f"{kept:,}", "note": f"{kept / max(read, 1):.1%}"},
            {"name": "leaks", "value": f"{len(report.leakage):,}", "note": "held-out sentences"},
        ],
        warnings=report.warnings,
        corpora=[
            {"name": name, "read": f"{counts[READ]:,}", "kept": f"{counts[KEPT]:,}",
             "dropped": f"{counts[READ] - counts[KEPT]:,}"}
            for name, counts in report.counts.items()
        ],
        reasons=[*_reasons(report)],
        languages=[*_languages(report)],
        maps=[*_maps(report)],
        leaks=leaks,
        leaks_note=f"The first {len(leaks):,} of {len(report.leakage):,}; all are in report.json.",
        charts=[render_chart(chart) for chart in _charts(report)],
        points=[
            {"x": f"{_PLOT[0] * left / most:.4g}", "y": f"{_PLOT[1] * (1 - right / most):.4g}",
             "label": f"{left} and {right}"}
            for left, right in report.lengths
        ],
        most=most,
        sides=[
            (side.language, f"{side.tokens:,}", f"{side.mean_length:.1f}", side.p99_length,
             side.max_length, f"{side.vocab_size:,}", f"{side.num_used:,}",
             f"{side.num_for_most:,}", f"{side.fallback_rate:.2%}")
            for side in report.sides
        ],
    )  # fmt: skip


def _reasons(report: PrepareReport) -> Iterator[dict[str, Any]]:
    """Yield the reasons, most frequent first."""
    for name, found in sorted(report.reasons.items(), key=lambda item: -item[1]["count"]):
        values = ", ".join(f"{value} {n:,}" for value, n in found.get("values", {}).items())
        yield {
            "name": name, "count": f"{found['count']:,}", "action": found["action"],
            "values": f": {values}" if values else "",
            "examples": [{**each, "value": _short(each["value"])} for each in found["examples"]],
        }  # fmt: skip


def _languages(report: PrepareReport) -> Iterator[dict[str, str]]:
    """Yield the languages of each side, with shares of the training pairs and the first lines."""
    read = sum(report.counts[name][READ] for name in report.findings)
    for language, found in report.reasons.get("language", {}).get("sides", {}).items():
        others = sum(each["count"] for each in found.values())
        yield _language(language, language, read - others, read, "the rest, or too short to tell")
        for name, each in found.items():
            lines = ", ".join(f"{x['corpus']} {x['line']:,}" for x in each["first"])
            yield _language(language, name, each["count"], read, lines)


def _language(side: str, name: str, count: int, read: int, lines: str) -> dict[str, str]:
    return {
        "side": side, "name": name, "pairs": f"{count:,}", "share": f"{count / max(read, 1):.2%}",
        "lines": lines,
    }  # fmt: skip


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _maps(report: PrepareReport) -> Iterator[dict[str, Any]]:
    """Yield where in each corpus the sides do not belong together."""
    for name in report.findings:
        lines = max(report.counts[name][READ], 1)
        found: list[tuple[Mapping[str, Any], str]] = [
            *((each, f"shifted by {each['offset']:+}") for each in report.shifts),
            *((each, "unrelated") for each in report.unrelated),
        ]
        here = [(each, what) for each, what in found if each["corpus"] == name]
        ends = [(each["start"] - 1, each["end"]) for each, _ in here]
        yield {
            "name": name,
            "note": f"{lines:,} lines, {len(here):,} ranges shifted or unrelated",
            "ranges": [
                {
                    "x": f"{_WIDTH * start / lines:.5g}",
                    "width": f"{max(_WIDTH * (end - start) / lines, 2):.5g}",
                    "label": f"lines {each['start']:,} to {each['end']:,}: {what}",
                }
                for (each, what), (start, end) in zip(here, ends, strict=True)
            ],
        }


def _charts(report: PrepareReport) -> Iterator[Chart]:
    curves = [
        Curve(side.language, [*enumerate(map(float, side.lengths))])
        for side in report.sides if side.lengths
    ]  # fmt: skip
    if curves:
        end = max(len(curve.points) for curve in curves)
        size = (500, 260)
        yield Chart(
            "Sentences by length",
            "kept sentences",
            curves,
            float(end),
            size,
            True,
            x_name="subwords",
        )
