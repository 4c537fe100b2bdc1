"""The numbers of a run -> one HTML page to read: curves, scores, sample translations.

The page needs no network, no script and no other file. It is well-formed XML too.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.training.report import Event, UpdateReport, ValidationReport

Point = tuple[float, float]
"""A step and a value. A value that is not a number is a gap."""

_Line = Mapping[str, Any]
_MAX_POINTS, _MAX_ROWS = 400, 100
_NUM_AVERAGES = 100
_WIDE = 520, 280
_LIMIT = 1e300  # beyond it sums and quotients overflow: as good as infinite
_ILLEGAL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
"""Control characters, which XML forbids -> pictures of them."""
_ILLEGAL |= {0xFFFE: 0xFFFD, 0xFFFF: 0xFFFD}


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis. Its ends are ``low`` and ``high``."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return how far from ``low`` (0) to ``high`` (1) a value lies."""
        bend: Callable[[float], float] = math.log10 if self.log else float
        return (bend(value) - bend(self.low)) / (bend(self.high) - bend(self.low))


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart."""

    label: str
    """Empty: the only one."""
    points: Sequence[Point]
    marked: bool = False
    """Whether its points are drawn. Others appear under the pointer only."""
    noisy: bool = False
    """Whether many points get a line of averages, and themselves turn pale."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves on common axes over steps."""

    title: str
    unit: str
    curves: Sequence[Curve]
    end: float = 1
    """Last step of the axis."""
    size: tuple[int, int] = (340, 200)
    """Width and height."""
    from_zero: bool = False
    log_if_wide: bool = False
    """Whether values far apart get a logarithmic axis."""


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` steps of 1, 2 or 5 times a power of ten that enclose a range.

    >>> round_ticks(1.9, 7.8)
    [0, 2, 4, 6, 8]
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)) + 1e-300:
        pad = abs(high) / 10 or 1.0
        low, high = (low - pad if low else 0.0), high + pad
    size = (high - low) / count
    exponent = math.floor(math.log10(size))
    factor = next(each for each in (1, 2, 5, 10) if each * 10.0**exponent >= size * (1 - 1e-9))
    spacing = factor * 10.0**exponent
    numbers = range(math.floor(low / spacing + 1e-9), math.ceil(high / spacing - 1e-9) + 1)
    if exponent >= 0:
        return [each * factor * 10**exponent for each in numbers]
    return [each * factor / 10**-exponent for each in numbers]  # 3 / 10, not 3 * 0.1


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, and 2 and 5 times these if they are few, that enclose a range.

    >>> log_ticks(0.3, 20)
    [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    """
    start, end = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    factors = (1, 2, 5) if high < 100 * low else (1,)
    ticks = [
        float(f"{factor}e{exponent}") for exponent in range(start, end + 1) for factor in factors
    ]
    first = max(index for index, tick in enumerate(ticks) if tick <= low)
    last = min(index for index, tick in enumerate(ticks) if tick >= high)
    return ticks[first : last + 1]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return what to write at evenly spaced ticks: the same decimals for all.

    >>> tick_labels([0, 5_000, 10_000]), tick_labels([0, 0.5, 1.0])
    (['0', '5k', '10k'], ['0', '0.5', '1.0'])
    """
    top, spacing = max(map(abs, ticks)), ticks[1] - ticks[0]
    if top >= 1e9 or spacing < 1e-6:
        return [f"{tick:.4g}" for tick in ticks]
    unit, suffix = (1e6, "M") if top >= 1e6 else (1e3, "k") if top >= 1e4 else (1, "")
    decimals = max(0, -math.floor(math.log10(spacing / unit) + 1e-9))
    return [f"{tick / unit:,.{decimals}f}{suffix}" if tick else "0" for tick in ticks]


def thin(points: Sequence[Point], limit: int = _MAX_POINTS) -> Sequence[Point]:
    """Return few points that look the same: of each stretch its lowest and highest, and a gap.

    The first and the last point stay. Finite points are at most ``limit``.
    """
    if len(points) <= limit:
        return points
    inner, num_stretches = range(1, len(points) - 1), limit // 2 - 1
    values = [value for _, value in points]
    kept = {0, len(points) - 1}
    for number in range(num_stretches):
        start, end = (len(inner) * each // num_stretches for each in (number, number + 1))
        stretch = inner[start:end]
        finite = [index for index in stretch if not math.isnan(values[index])]
        if finite:
            kept.add(min(finite, key=values.__getitem__))
            kept.add(max(finite, key=values.__getitem__))
        if len(finite) < len(stretch):
            kept.add(next(index for index in stretch if math.isnan(values[index])))
    return [points[index] for index in sorted(kept)]


def averages(points: Sequence[Point], count: int = _NUM_AVERAGES) -> list[Point]:
    """Return the middle step and the mean value of each of ``count`` stretches.

    >>> averages([(1, 2.0), (2, 4.0), (3, 7.0), (4, math.nan)], 2)
    [(1.5, 3.0), (3.5, 7.0)]
    """
    found = []
    for number in range(count):
        start, end = (len(points) * each // count for each in (number, number + 1))
        values = [value for _, value in points[start:end] if not math.isnan(value)]
        middle = (points[start][0] + points[end - 1][0]) / 2
        found.append((middle, sum(values) / len(values) if values else math.nan))
    return found


def path_data(places: Iterable[Point]) -> str:
    """Return the ``d`` of an SVG path through places. One that is not a number breaks the line.

    >>> path_data([(0, 1), (2, 3), (4, float("nan")), (5, 6)])
    'M0,1L2,3M5,6h0'
    """
    pieces: list[list[str]] = [[]]
    for x, y in places:
        if math.isnan(y):
            pieces.append([])
        else:
            pieces[-1].append(f"{x:.5g},{y:.5g}")
    return "".join("M" + "L".join(piece) + "h0" * (len(piece) == 1) for piece in pieces if piece)


def render_chart(chart: Chart) -> str:
    """Return a figure: heading, key with the last values, and the picture as inline SVG."""
    values = [value for curve in chart.curves for _, value in _finite(curve.points)]
    key = "".join(_key(index, curve) for index, curve in enumerate(chart.curves))
    scale = _value_scale(chart, values) if values else None
    unit = f"{chart.unit}, log scale" if scale and scale.log else chart.unit
    picture = _picture(chart, scale) if scale else '<p class="none">Nothing measured yet.</p>'
    return (
        f'<figure class="{"wide" if chart.size[0] > 400 else "small"}"><figcaption>'
        f"<h3>{_text(chart.title)}</h3> <span>{_text(unit)}</span>"
        f'<p class="key">{key}</p></figcaption>{picture}</figure>\n'
    )


def _key(index: int, curve: Curve) -> str:
    known = (value for _, value in reversed(curve.points) if not math.isnan(value))
    last = "".join(f" <b>{_short(value)}</b>" for value in itertools.islice(known, 1))
    label = f"<i></i>{_text(curve.label)}" if curve.label else "latest" if last else ""
    return f'<span class="c{index}">{label}{last}</span> '


def _value_scale(chart: Chart, values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    positive = [value for value in values if value > 1 / _LIMIT]
    if chart.log_if_wide and positive and high > 50 * min(positive):
        ticks = log_ticks(min(positive), high)
        return Scale(ticks[0], ticks[-1], ticks, log=True)
    ticks = round_ticks(min(low, 0) if chart.from_zero else low, high)
    return Scale(ticks[0], ticks[-1], ticks)


def _picture(chart: Chart, y: Scale) -> str:
    width, height = chart.size
    steps = round_ticks(0, chart.end, width // 75)
    x = Scale(0, chart.end, [step for step in steps if step <= chart.end and not step % 1])
    left, right, top, bottom = 52, width - 14, 10, height - 40

    def place(step: float, value: float) -> Point:
        value = math.nan if y.log and value < y.low else value
        return left + x.share(step) * (right - left), bottom - y.share(value) * (bottom - top)

    rows = list(zip(y.ticks, _log_labels(y.ticks) if y.log else tick_labels(y.ticks), strict=True))
    lines = "".join(f"M{left},{place(0, tick)[1]:.5g}H{right}" for tick, _ in rows)
    labels = "".join(
        f'<text class="y" x="{left - 8}" y="{place(0, tick)[1] + 4:.5g}">{label}</text>'
        for tick, label in rows
    ) + "".join(
        f'<text x="{place(tick, y.low)[0]:.5g}" y="{bottom + 18}">{label}</text>'
        for tick, label in zip(x.ticks, tick_labels(x.ticks), strict=True)
    )
    curves = "".join(_drawn(index, each, place) for index, each in enumerate(chart.curves))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_text(chart.title)}">'
        f'<path class="grid" d="{lines}"/>{labels}'
        f'<text x="{(left + right) / 2:.5g}" y="{height - 4}">step</text>{curves}</svg>'
    )


def _log_labels(ticks: Sequence[float]) -> list[str]:
    every = math.ceil(len(ticks) / 7)
    return [_short(tick) if not index % every else "" for index, tick in enumerate(ticks)]


def _drawn(index: int, curve: Curve, place: Callable[[float, float], Point]) -> str:
    points = thin(curve.points)
    if not points:
        return ""
    name = f", {_text(curve.label)}" if curve.label else ""
    places = [place(*point) for point in points]
    dots = "".join(
        f'<circle cx="{x:.5g}" cy="{y:.5g}" r="3">'
        f"<title>step {step:,.0f}{name}: {_short(value)}</title></circle>"
        for (step, value), (x, y) in zip(points, places, strict=True)
        if not math.isnan(y)
    )
    lines = f'<path d="{path_data(places)}"/>'
    if curve.noisy and len(curve.points) > 2 * _NUM_AVERAGES:
        trend = path_data(place(*point) for point in averages(curve.points))
        lines = f'<path class="pale" d="{path_data(places)}"/><path d="{trend}"/>'
    kind = "marked" if len(points) <= (60 if curve.marked else 1) else "plain"
    return f'<g class="c{index} {kind}">{lines}{dots}</g>'


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
            f'<dt>{part}</dt><dd class="{part.lower()}" dir="auto">{_text(text)}</dd>'
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
    note = _PALE_NOTE if len(updates) > 2 * _NUM_AVERAGES else ""
    charts = "".join(map(render_chart, _charts(updates, validations)))
    curves = f'{note}<div class="charts">\n{charts}</div>'
    config = f"<details><summary>Configuration</summary><pre>{_text(config_text)}</pre></details>"
    return (
        f'<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">{_head(title)}'
        f'<body>\n<header><h1 dir="auto">{_text(title)}</h1>\n{_state(updates, validations)}'
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
        f'<head><meta charset="utf-8"/><title>{_text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<style>{_STYLE}</style></head>\n"
    )


def _state(updates: Sequence[_Line], validations: Sequence[_Line]) -> str:
    both = [*updates, *validations]
    if not both:
        return '<p class="none">No update has been reported yet.</p>'
    last = max(both, key=lambda line: line["step"])
    minutes = round(sum(value for _, value in _finite(_points(both, "seconds"))) / 60)
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
        return value if -_LIMIT < value < _LIMIT else math.nan
    except TypeError:  # null, say
        return math.nan


def _finite(points: Iterable[Point]) -> list[Point]:
    return [point for point in points if not math.isnan(point[1])]


def _best(lines: Sequence[_Line], key: str, choose: Callable[..., _Line]) -> _Line | None:
    known = [line for line in lines if not math.isnan(_number(line, key))]
    return choose(known, key=lambda line: _number(line, key)) if known else None


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _fixed(value: float, decimals: int) -> str:
    if math.isnan(value):
        return "\N{EN DASH}"
    return f"{value:,.{decimals}f}" if abs(value) < 1e9 else _short(value)


def _text(text: object) -> str:
    clean = str(text).encode("utf-8", "replace").decode().translate(_ILLEGAL)
    return html.escape(clean)


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
