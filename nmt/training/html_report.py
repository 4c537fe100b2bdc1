"""The numbers of a run -> one HTML page to read: curves, scores, sample translations.

The page needs no network, no script and no other file. It is well-formed XML too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.report.charts import (
    LIMIT,
    NUM_AVERAGES,
    Chart,
    Curve,
    Point,
    escaped,
    finite,
    render_chart,
    short_number,
)
from nmt.training.report import Event, UpdateReport, ValidationReport

_Line = Mapping[str, Any]
_MAX_ROWS = 100
_WIDE = 520, 280


def render_validations(validations: Sequence[_Line]) -> str:
    """Return a table of the latest validations, newest first, with that of the best BLEU."""
    if not validations:
        return '<p class="none">None yet.</p>'
    best = _best(validations, "bleu", max)
    start = len(validations) - _MAX_ROWS
    shown = [each for number, each in enumerate(validations) if number >= start or each is best]
    names = ("Step", "Epoch", "Perplexity", "BLEU", "chrF", "Seconds")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = "".join(_row(each, each is best) for each in reversed(shown))
    all_shown = len(shown) == len(validations)
    note = "" if all_shown else f"{len(shown)} of {len(validations):,}: the latest and the best. "
    note += "Bold: best BLEU." if best else ""
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="none">{note}</p>'
    )


def _row(line: _Line, is_best: bool) -> str:
    decimals = {"epoch": 0, "perplexity": 2, "bleu": 2, "chrf": 2, "seconds": 1}
    cells = "".join(f"<td>{_fixed(_number(line, key), n)}</td>" for key, n in decimals.items())
    row = '<tr class="best">' if is_best else "<tr>"
    return f'{row}<th scope="row">{line["step"]:,.0f}</th>{cells}</tr>'


def render_samples(samples: Iterable[Sequence[str]]) -> str:
    """Return sources with their translations and references."""
    parts = ("Source", "Translation", "Reference")
    items = []
    for sample in samples:
        pairs = zip(parts, sample, strict=False)
        texts = "".join(
            f'<dt>{part}</dt><dd class="{part.lower()}" dir="auto">{escaped(text)}</dd>'
            for part, text in pairs
        )
        items.append(f'<dl class="sample" translate="no">{texts}</dl>\n')
    return "".join(items) or '<p class="none">None yet.</p>'


def render_report(title: str, events: Iterable[_Line], config_text: str = "") -> str:
    """Return the page of a run.

    Long curves are thinned to about 400 points: the lowest and highest of each stretch stay.

    Args:
        title: Name of the run.
        events: The lines of ``metrics.jsonl``, parsed. Later ones win where steps are equal.
        config_text: The configuration the run goes by.
    """
    updates, validations = _sorted_by_step(events)
    samples = validations[-1].get("samples") if validations else None
    where = f" at step {validations[-1]['step']:,.0f}" if samples else ""
    note = _PALE_NOTE if len(updates) > 2 * NUM_AVERAGES else ""
    charts = "".join(map(render_chart, _charts(updates, validations)))
    curves = f'{note}<div class="charts">\n{charts}</div>'
    config = f"<details><summary>Configuration</summary><pre>{escaped(config_text)}</pre></details>"
    return (
        f'<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">{_head(title)}'
        f'<body>\n<header><h1 dir="auto">{escaped(title)}</h1>\n{_state(updates, validations)}'
        "</header>\n<main>\n"
        f"{_section('Learning curves', curves)}"
        f"{_section(f'Sample translations{where}', render_samples(samples or ()))}"
        f"{_section('Validations', render_validations(validations))}"
        f"{config if config_text else ''}</main>\n</body></html>\n"
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>\n{content}</section>\n"


_PALE_NOTE = '<p class="none note">Pale: the values themselves. Strong: their averages.</p>'


def _head(title: str) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'"  # nothing runs, nothing is fetched
    return (
        f'<head><meta charset="utf-8"/><title>{escaped(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<style>{_STYLE}</style></head>\n"
    )


def _state(updates: Sequence[_Line], validations: Sequence[_Line]) -> str:
    both = [*updates, *validations]
    if not both:
        return '<p class="none">No update has been reported yet.</p>'
    last = max(both, key=lambda line: line["step"])
    minutes = round(sum(value for _, value in finite(_points(both, "seconds"))) / 60)
    facts = [
        ("Step", f"{last['step']:,.0f}", ""),
        ("Epoch", _fixed(_number(last, "epoch"), 0), ""),
        ("Time", f"{minutes // 60:,} h " * (minutes >= 60) + f"{minutes % 60} min", ""),
    ]
    kinds = (("bleu", "Best BLEU", max), ("perplexity", "Lowest perplexity", min))
    for key, label, choose in kinds:
        if best := _best(validations, key, choose):
            facts.append((label, _fixed(_number(best, key), 2), f"at step {best['step']:,.0f}"))
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{value} <small>{where}</small></dd></div>"
        for name, value, where in facts
    )
    return f'<dl class="state">{tiles}</dl>\n'


def _charts(updates: Sequence[_Line], validations: Sequence[_Line]) -> list[Chart]:
    end = max([1.0, *(lines[-1]["step"] for lines in (updates, validations) if lines)])
    loss = Curve("training (smoothed objective)", _points(updates, "loss"), noisy=True)
    loss_of_references = Curve("validation", _points(validations, "loss"), marked=True)
    bleu = Curve("BLEU", _points(validations, "bleu"), marked=True)
    chrf = Curve("chrF", _points(validations, "chrf"), marked=True)
    rate = Curve("", _points(updates, "learning_rate"))
    speed = Curve("", _points(updates, "target_tokens_per_second"), noisy=True)
    norm = Curve("", _points(updates, "gradient_norm"), noisy=True)
    return [
        Chart("Loss", "nats per target token", [loss, loss_of_references], end, _WIDE),
        Chart("Translation quality", "score, 0 to 100", [bleu, chrf], end, _WIDE),
        Chart("Learning rate", "per update", [rate], end, from_zero=True),
        Chart("Speed", "target tokens per second", [speed], end, from_zero=True),
        Chart("Gradient norm", "before clipping", [norm], end, log_if_wide=True),
    ]


def _sorted_by_step(events: Iterable[_Line]) -> list[list[_Line]]:
    found: dict[str, dict[float, _Line]] = {UpdateReport.kind: {}, ValidationReport.kind: {}}
    for line in events:
        by_step = found.get(str(line.get("kind")))
        if by_step is not None and _number(line, "step") >= 0:
            by_step[line["step"]] = line
    return [[by_step[step] for step in sorted(by_step)] for by_step in found.values()]


def _points(lines: Sequence[_Line], key: str) -> list[Point]:
    return [(line["step"], _number(line, key)) for line in lines]


def _number(line: _Line, key: str) -> float:
    value = line.get(key, math.nan)
    try:
        return value if -LIMIT < value < LIMIT else math.nan
    except TypeError:  # null, say
        return math.nan


def _best(lines: Sequence[_Line], key: str, choose: Callable[..., _Line]) -> _Line | None:
    known = [line for line in lines if not math.isnan(_number(line, key))]
    return choose(known, key=lambda line: _number(line, key)) if known else None


def _fixed(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "\N{EN DASH}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e9 else short_number(value)


class HtmlReport:
    """Keeps ``report.html`` of a run up to date: at every validation and at the end.

    It reads ``metrics.jsonl``, so it comes after ``JsonLines`` among the reporters.

    Args:
        run_dir: Folder of the run.
        title: Name of the run.
    """

    def __init__(self, run_dir: Path, title: str) -> None:
        self._run_dir, self._title = run_dir, title

    def report(self, event: Event) -> None:
        """Write the page anew after a validation."""
        if isinstance(event, ValidationReport):
            self._write()

    def close(self) -> None:
        """Write the page a last time."""
        self._write()

    def _write(self) -> None:
        temporary = self._run_dir / ".tmp-report.html"
        try:
            lines = _read(self._run_dir / "metrics.jsonl").split("\n")
            config = _read(self._run_dir / "config.yaml")
            page = render_report(self._title, _parsed(lines), config)
            temporary.write_text(page, encoding="utf-8")
            temporary.replace(self._run_dir / "report.html")
        except OSError:  # a full disk stops no training; the page before stays
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _parsed(lines: Iterable[str]) -> Iterable[_Line]:
    for line in lines:
        with suppress(ValueError):  # the last line of a killed process may be half a line
            values = json.loads(line)
            if isinstance(values, dict):
                yield values


_STYLE = """
:root{color-scheme:light dark;--page:#fdfcfb;--ink:#21252b;--soft:#5d6671;--line:#e4e2de;
--c0:#2566a0;--c1:#b9561b}
@media (prefers-color-scheme:dark){:root{--page:#17191c;--ink:#e2e5e8;--soft:#9aa3ad;
--line:#31363c;--c0:#74b2e6;--c1:#eba164}}
*{box-sizing:border-box}
body{max-width:1080px;margin:0 auto;padding:48px 24px 72px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
h1,h2,h3,p,dl,dd,figure{margin:0}
h1{font-size:28px;line-height:1.2;font-weight:650;overflow-wrap:anywhere}
h2{margin:48px 0 20px;padding-top:20px;border-top:1px solid var(--line);font-size:20px;
font-weight:600}
h3{display:inline;font-size:16px;font-weight:600}
dt,small,figcaption,thead,.none{font-size:14px;color:var(--soft)}
.state{display:flex;flex-wrap:wrap;gap:16px 40px;margin-top:20px}
.state dd{font-size:22px;font-variant-numeric:tabular-nums}
.note{margin:-14px 0 24px}
.charts{display:grid;grid-template-columns:repeat(6,1fr);gap:36px 28px}
figure{grid-column:span 2;min-width:0}
figure.wide{grid-column:span 3}
h3{color:var(--ink)}
h3+span{margin-left:4px}
.key>span{margin-right:16px;white-space:nowrap}
.key i{display:inline-block;width:14px;height:3px;margin-right:6px;border-radius:2px;
vertical-align:middle;background:currentColor}
.key .c0 i{color:var(--c0)}.key .c1 i{color:var(--c1)}
.key b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;margin-top:8px;overflow:visible}
svg text{font-size:12.5px;fill:var(--soft);text-anchor:middle;font-variant-numeric:tabular-nums}
svg .y{text-anchor:end}
.grid{stroke:var(--line)}
g.c0{color:var(--c0)}g.c1{color:var(--c1)}
g path{fill:none;stroke:currentColor;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}
g .pale{stroke-width:1;opacity:.35}
circle{fill:transparent;stroke:transparent;stroke-width:8}
.marked circle,circle:hover{fill:currentColor}
.sample{display:grid;grid-template-columns:96px 1fr;gap:2px 16px;padding:14px 0;
border-bottom:1px solid var(--line)}
.sample:first-of-type{padding-top:0}.sample:last-of-type{border:0}
.sample dt{padding-top:1px}
.sample dd{min-width:0;overflow-wrap:anywhere}
.sample dd{color:var(--soft)}.sample .translation{color:var(--ink)}
.scroll{overflow:auto;max-height:480px}
table{border-collapse:collapse;min-width:480px;max-width:640px;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px 6px 0;text-align:right;font-weight:400;border-bottom:1px solid var(--line)}
thead th{position:sticky;top:0;background:var(--page)}
.best>*{font-weight:700}
.scroll+.none{margin-top:8px}
details{margin-top:48px;padding-top:20px;border-top:1px solid var(--line)}
summary{cursor:pointer;font-size:20px;font-weight:600}
pre{overflow:auto;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}
@media (max-width:760px){body{padding:24px 16px 48px}
.charts{display:block}figure{margin-bottom:32px}.wide svg text{font-size:16px}
.state{gap:12px 28px}.sample{display:block}.sample dd{margin-bottom:6px}}
"""
