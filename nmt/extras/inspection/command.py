"""``nmt inspect``: show the inside of a model as text, HTML, SVG or JSON."""

from __future__ import annotations

import json
import logging
import webbrowser
from collections.abc import Collection, Iterable, Iterator
from inspect import cleandoc
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

import torch

from nmt.config.flag import changed
from nmt.errors import ConfigError, shell_command
from nmt.extras.inspection.figure import Figure, Part, as_dict, part_text
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.options import NOT_IN_PAGE, VIEWS, InspectOptions, Style
from nmt.extras.inspection.page import document, render_page
from nmt.extras.inspection.worked_examples import worked_examples
from nmt.files.atomic import check_output, open_output
from nmt.registry import chosen, load_attribute
from nmt.training.report import HtmlReport

logger = logging.getLogger(__name__)
_STYLES: dict[str, Style] = {
    ".html": "html", ".htm": "html", ".svg": "svg", ".json": "json", ".txt": "text",
}  # fmt: skip


def inspect(options: InspectOptions) -> None:
    """Look inside a model: arithmetic, attention, decoding.

    Layers and heads are numbered from 1. An HTML page is a single file that needs no network.

    Raises:
        ConfigError: The view, layer or head does not exist, an option has no effect in the view, or
            the sentence is missing or too long.
        CheckpointError: The model is missing, damaged or exported for CTranslate2.
    """
    _check_view(options)
    style = _style(options)
    output = options.output
    check_output(output, options.model)
    facts: dict[str, str] = {}
    offers: dict[str, str] = {}
    if options.model is None:
        place = "for worked examples"
        _refuse_idle(options, [], place)
        title = "Inside the Transformer"
        explanation = worked_examples.__doc__
        parts = [_part("worked-examples", explanation, worked_examples())]
    else:
        inspected = Inspected(options.model, options)
        names = list(_page_views(inspected))
        place = "on this page"
        if options.view:
            names = [options.view]
            place = f"in {options.view}"
            _check_needs(options.view, inspected)
        used = set(chain.from_iterable(VIEWS[name].options for name in names))
        effective = used
        if not inspected.is_folder:
            effective = used - {"checkpoint", "beam_size"} | {"set_"}
        _refuse_idle(options, effective, place)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for one sentence, several threads cost more than they save
        try:
            parts = [make_part(name, inspected) for name in names]
            facts = _facts(inspected, used)
        finally:
            torch.set_num_threads(threads)
        title = f"Inside {inspected.config.name}"
        if not options.view:
            offers = _offers(inspected, names)
    if style == "json":
        named = {part.name: part for part in parts}
        data = {"title": title, "facts": facts, "parts": named}
        text = json.dumps(data, ensure_ascii=False, default=as_dict)
        text += "\n"
    elif style == "html":
        text = render_page(title, facts, parts, offers)
    elif style == "svg":
        figures = chain.from_iterable(part.figures for part in parts)
        text = document(list(figures))
    else:
        text = "\n".join(map(part_text, parts))
    if options.open_ and output is None:
        ending = next(ending for ending, name in _STYLES.items() if name == style)
        output = Path(mkdtemp(prefix="nmt-")) / f"inspect{ending}"
    with open_output(output) as writer:
        writer.write(text.encode("utf-8", "replace"))
    if output and output.parent == options.model and (output.parent / "report.html").is_file():
        report = HtmlReport(output.parent, title.removeprefix("Inside "))
        report.close()  # links to this page
    if options.open_ and output:
        webbrowser.open(output.resolve().as_uri())
    elif style == "text" and offers and not options.source:
        logger.info("for more views, add `source` SENTENCE; for a page, add `output` page.html")


def make_part(name: str, inspected: Inspected) -> Part:
    """Return one view of a model.

    Raises:
        ConfigError: A sentence or a vocabulary is missing, or the sentence is too long.
        CheckpointError: The weights are missing or damaged.
    """
    _check_needs(name, inspected)
    inspected.check()
    view = load_attribute(f"{__package__}.{VIEWS[name].module}:{name}")
    return _part(name, view.__doc__, view(inspected))


def _check_needs(name: str, inspected: Inspected) -> None:
    error = inspected.missing(VIEWS[name].needs, name)
    if error:
        raise error


def _part(name: str, doc: str | None, figures: Iterable[Figure]) -> Part:
    """Return a view with its figures. ``doc`` contains title and explanation."""
    title, _, text = cleandoc(doc or name).partition("\n\n")
    explanation = " ".join(text.split())
    return Part(name, title.rstrip("."), explanation, list(figures))


def _check_view(options: InspectOptions) -> None:
    """Raise an error for a missing model, an unknown view, or a view before the model."""
    if options.model is None and not options.worked_examples:
        fix = "Pass a run folder or a configuration."
        raise ConfigError("MODEL is missing.", fix=fix)
    if options.model is not None and options.worked_examples:
        fix = "Remove MODEL or `worked_examples`."
        problem = "`worked_examples` and MODEL cannot be combined."
        raise ConfigError(problem, fix=fix)
    is_unknown = options.view not in (None, *VIEWS)
    if is_unknown and str(options.model) in VIEWS:
        right = shell_command("inspect", options.view, options.model)
        problem = f"Write the view {options.model} after MODEL."
        raise ConfigError(problem, fix=f"Type: {right}")
    if options.view is not None:
        chosen(VIEWS, options.view, "view")


def _refuse_idle(options: InspectOptions, used: Collection[str], place: str) -> None:
    """Raise an error if an option outside ``used`` was changed."""
    of_views = chain.from_iterable(view.options for view in VIEWS.values())
    unused = set(of_views).difference(used)
    idle = changed(options, *unused)
    if idle:
        names = ", ".join(f"`{name}`" for name in sorted(idle))
        problem = f"{names} has no effect {place}."
        raise ConfigError(problem, fix=f"Remove {names}.")


def _style(options: InspectOptions) -> Style:
    """Return the chosen format; by default, the format of the file's ending, or text.

    Raises:
        ConfigError: The ending of the file does not match the format.
    """
    ending = ""
    if options.output:
        ending = options.output.suffix.lower()
    usual: Style = "text"
    if options.open_:
        usual = "html"
    style = options.format_ or _STYLES.get(ending, usual)
    if ending and _STYLES.get(ending) != style:
        problem = f"the ending {ending} does not match the format {style}"
        fix = f"Use one of the endings {', '.join(_STYLES)}, and remove `format`."
        problem = f"`output` {options.output}: {problem}."
        raise ConfigError(problem, fix=fix)
    return style


def _page_views(inspected: Inspected) -> Iterator[str]:
    for name, view in VIEWS.items():
        is_comparison = name == "distributions" and len(inspected.choice.checkpoint) > 1
        is_main = is_comparison or name not in NOT_IN_PAGE
        if is_main and not inspected.missing(view.needs, name):
            yield name


def _offers(inspected: Inspected, shown: list[str]) -> dict[str, str]:
    """Return commands for views that are not on the page, each with a summary of the view."""
    offers = {}
    for name, view in VIEWS.items():
        can_be_read = view.needs == "vocabulary" and inspected.has_tokenizers
        if name not in shown and (inspected.has_weights or can_be_read):
            command = shell_command("inspect", inspected.place, name)
            if "source" in view.options:
                source = inspected.choice.source or "Hello!"
                command = shell_command("inspect", inspected.place, name, source=source)
            offers[command] = view.summary
    return offers


def _facts(inspected: Inspected, used: Collection[str]) -> dict[str, str]:
    """Return names and values for the top of the page. ``used`` are options with an effect."""
    config = inspected.config
    model = config.model
    choice = inspected.choice
    size = sum(parameter.numel() for parameter in inspected.structure.parameters())
    facts = {
        "Languages": f"{config.source_language} \N{RIGHTWARDS ARROW} {config.target_language}",
        "Model": f"{model.encoder_layers} encoder and {model.decoder_layers} decoder layers, "
        f"{model.num_heads} heads, width {model.model_dim:,}, {size:,} parameters",
    }
    if inspected.is_folder and "checkpoint" in used:
        facts["Checkpoint"] = inspected.checkpoint
    elif "layer" in used and choice.source:
        facts["Checkpoint"] = f"none: random weights (seed {inspected.seed}), not trained"
    if choice.source and "source" in used:
        facts["Source"] = choice.source
        if choice.target is not None:
            facts["Target"] = choice.target
        elif inspected.has_weights:
            translation = inspected.tokenizers.target.decode(inspected.target_ids)
            facts["Translation by the model"] = translation
        elif not inspected.is_folder:
            facts["Target"] = "a copy of the source, because an untrained model cannot translate"
    return facts
