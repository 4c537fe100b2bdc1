"""The report of `nmt prepare` as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from nmt.data.prepare_report import KEPT, READ, PrepareReport
from nmt.report.page import Chart, Curve, render, render_chart

_WIDTH, _PLOT = 1000, (400, 300)


def render_report(report: PrepareReport) -> Markup:
    """Return ``report.html``: reasons, languages, misaligned ranges, leakage, lengths, subwords."""
    most = max((max(pair) for pair in report.lengths), default=1)
    curves = [
        Curve(side.language, [*enumerate(map(float, side.lengths))])
        for side in report.sides if side.lengths
    ]  # fmt: skip
    end = max((len(curve.points) for curve in curves), default=0)
    lengths = Chart("Sentences by length", "kept sentences", curves, end, (500, 260), True,
                    x_name="subwords")  # fmt: skip
    return render(
        "corpus.html.j2",
        title="Data preparation report",
        report=report,
        read=sum(counts[READ] for counts in report.counts.values()),
        kept=sum(counts[KEPT] for counts in report.counts.values()),
        reasons=sorted(report.reasons.items(), key=lambda item: -item[1]["count"]),
        languages=[*_languages(report)],
        maps=[_map(report, name) for name in report.findings],
        charts=[render_chart(lengths)] if curves else [],
        points=[
            (f"{_PLOT[0] * left / most:.4g}", f"{_PLOT[1] * (1 - right / most):.4g}",
             f"{left} and {right}")
            for left, right in report.lengths
        ],
        most=most,
    )  # fmt: skip


def _languages(report: PrepareReport) -> Iterator[tuple[str, str, int, float, str]]:
    """Yield side, language, number of pairs, share of the training pairs, and first lines."""
    read = sum(report.counts[name][READ] for name in report.findings)
    for side, found in report.reasons.get("language", {}).get("sides", {}).items():
        rest = read - sum(other["count"] for other in found.values())
        yield side, side, rest, rest / max(read, 1), "as expected, or too short to identify"
        for name, other in found.items():
            lines = ", ".join(f"{place['corpus']} {place['line']:,}" for place in other["first"])
            yield side, name, other["count"], other["count"] / max(read, 1), lines


def _map(report: PrepareReport, name: str) -> dict[str, Any]:
    """Return the drawing of a corpus's misaligned ranges."""
    lines = max(report.counts[name][READ], 1)
    ranges = []
    for found in (*report.shifts, *report.unrelated):
        if found["corpus"] == name:
            start, end = found["start"], found["end"]
            what = f"shift {found['offset']:+}" if "offset" in found else "unrelated"
            ranges.append({
                "x": f"{_WIDTH * (start - 1) / lines:.5g}",
                "width": f"{max(_WIDTH * (end - start + 1) / lines, 2):.5g}",
                "label": f"lines {start:,} to {end:,}: {what}",
            })  # fmt: skip
    note = f"{lines:,} lines; misaligned ranges: {len(ranges):,}"
    return {"name": name, "note": note, "ranges": ranges}
