"""``nmt inspect``: show the inside of a model as text, HTML, SVG or JSON."""

from __future__ import annotations

import json
import logging
import sys
import webbrowser
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from inspect import cleandoc
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp

import torch

from nmt.commands.loading import check_output
from nmt.config.flag import changed
from nmt.errors import ConfigError, shell_command
from nmt.extras.inspection.figure import Figure, Part, as_dict, part_text
from nmt.extras.inspection.inspected import Inspected
from nmt.extras.inspection.options import NOT_IN_PAGE, VIEWS, InspectOptions, OutputFormat
from nmt.extras.inspection.page import document, render_page
from nmt.extras.inspection.worked_examples import worked_examples
from nmt.files.atomic import open_output
from nmt.files.terminal import columns_of
from nmt.registry import chosen, load_attribute
from nmt.text.languages import name_of
from nmt.training.report import HtmlReport

logger = logging.getLogger(__name__)
# Ending of a file -> its format. The first ending of a format is the usual one.
_FORMATS: dict[str, OutputFormat] = {
    ".html": "html", ".htm": "html", ".svg": "svg", ".json": "json", ".txt": "text",
}  # fmt: skip


def inspect(options: InspectOptions) -> None:
    """Look inside a model: arithmetic, attention, decoding.

    Layers and heads are numbered from 1. An HTML page is a single file that needs no network.

    Raises:
        ConfigError: The view, layer or head does not exist, an option has no effect in the view, or
            the sentence is missing or too long.
        CheckpointError: The model is missing, damaged or exported for CTranslate2.
        DeviceError: The device does not exist.
    """
    _check_view(options)
    output_format = _output_format(options)
    output = options.output
    check_output(output, options.model)
    facts = dict[str, str]()  # name -> value, for the top of the page
    offers = dict[str, str]()  # command for a view that is not on the page -> its summary
    if options.model is None:
        _refuse_ineffective(options, [], "for worked examples")
        title = "Inside the Transformer"
        explanation = worked_examples.__doc__
        parts = [_part("worked-examples", explanation, worked_examples())]
    else:
        inspected = Inspected(options.model, options)
        names = list(_page_views(inspected))
        where = "on this page"
        if options.view:
            names = [options.view]
            where = f"in {options.view}"
            _check_needs(options.view, inspected)
        view_options = set(chain.from_iterable(VIEWS[name].options for name in names))
        effective = view_options
        if not inspected.is_folder:
            # A configuration has no checkpoints and cannot translate, but it can be overridden.
            effective = view_options - {"checkpoint", "beam_size"} | {"set_"}
        _refuse_ineffective(options, effective, where)
        num_threads = torch.get_num_threads()
        torch.set_num_threads(options.threads)
        try:
            parts = [make_part(name, inspected) for name in names]
            facts = _facts(inspected, view_options)
        finally:
            torch.set_num_threads(num_threads)
        title = f"Inside {inspected.config.name}"
        if not options.view:
            offers = _offers(inspected, names)
    if output_format == "json":
        parts_by_name = {part.name: part for part in parts}
        data = {"title": title, "facts": facts, "parts": parts_by_name}
        text = json.dumps(data, ensure_ascii=False, default=as_dict)
        text += "\n"
    elif output_format == "html":
        text = render_page(title, facts, parts, offers)
    elif output_format == "svg":
        figures = chain.from_iterable(part.figures for part in parts)
        text = document(list(figures))
    else:
        columns = columns_of(sys.stdout) if output is None else None
        text = "\n".join(part_text(part, columns) for part in parts)
    if options.open_ and output is None:  # a browser needs a file
        ending = next(ending for ending, name in _FORMATS.items() if name == output_format)
        output = Path(mkdtemp(prefix="nmt-")) / f"inspect{ending}"
    with open_output(output) as writer:
        writer.write(text.encode("utf-8", "replace"))
    # In a run folder with a report, write the report again: it links to this page.
    if output and output.parent == options.model and (output.parent / "report.html").is_file():
        report = HtmlReport(output.parent, title.removeprefix("Inside "))
        report.close()
    if options.open_ and output:
        webbrowser.open(output.resolve().as_uri())
    elif output_format == "text" and offers and not options.source:
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
    part = _part(name, view.__doc__, view(inspected))
    return replace(part, is_detail=VIEWS[name].is_detail)


def _check_needs(name: str, inspected: Inspected) -> None:
    """Raise an error if a view cannot be shown."""
    error = inspected.missing(VIEWS[name].needs, name)
    if error:
        raise error


def _part(name: str, docstring: str | None, figures: Iterable[Figure]) -> Part:
    """Return a view with its figures.

    The first line of the docstring is the title, without the full stop; the rest is the
    explanation, as one paragraph.
    """
    title, _, text = cleandoc(docstring or name).partition("\n\n")
    explanation = " ".join(text.split())
    return Part(name, title.rstrip("."), explanation, list(figures))


def _check_view(options: InspectOptions) -> None:
    """Raise an error for a missing model, an unknown view, or a view that is before the model.

    If the view comes first on the command line, it is taken for the model, and the model for the
    view.
    """
    if options.model is None and not options.worked_examples:
        fix = "Pass a run folder or a configuration."
        raise ConfigError("MODEL is missing.", fix=fix)
    if options.model is not None and options.worked_examples:
        fix = "Remove MODEL or `worked_examples`."
        problem = "`worked_examples` and MODEL cannot be combined."
        raise ConfigError(problem, fix=fix)
    is_unknown = options.view not in (None, *VIEWS)
    if is_unknown and str(options.model) in VIEWS:
        right_command = shell_command("inspect", options.view, options.model)
        problem = f"Write the view {options.model} after MODEL."
        raise ConfigError(problem, fix=f"Type: {right_command}")
    if options.view is not None:
        if " " in options.view:
            raise ConfigError(f"{options.view!r} is not a view.", fix="Pass it with `source`.")
        chosen(VIEWS, options.view, "view")


def _refuse_ineffective(options: InspectOptions, effective: Collection[str], where: str) -> None:
    """Raise an error if the user changed an option that has no effect.

    Args:
        options: The options of the user.
        effective: Names of the options of views that have an effect.
        where: Where they have none, for the message: such as "in attention".
    """
    view_options = chain.from_iterable(view.options for view in VIEWS.values())
    without_effect = set(view_options).difference(effective)
    refused = changed(options, *without_effect)
    if refused:
        names = ", ".join(f"`{name}`" for name in sorted(refused))
        problem = f"{names} has no effect {where}."
        raise ConfigError(problem, fix=f"Remove {names}.")


def _output_format(options: InspectOptions) -> OutputFormat:
    """Return the chosen format; by default, the format of the file's ending.

    Without a known ending, the default is HTML for a web browser, and text otherwise.

    Raises:
        ConfigError: The ending of the file does not match the format.
    """
    ending = ""
    if options.output:
        ending = options.output.suffix.lower()
    default: OutputFormat = "text"
    if options.open_:
        default = "html"
    output_format = options.format_ or _FORMATS.get(ending, default)
    if ending and _FORMATS.get(ending) != output_format:
        mismatch = f"the ending {ending} does not match the format {output_format}"
        fix = f"Use one of the endings {', '.join(_FORMATS)}, and remove `format`."
        raise ConfigError(f"`output` {options.output}: {mismatch}.", fix=fix)
    return output_format


def _page_views(inspected: Inspected) -> Iterator[str]:
    """Yield the names of the views on the page: all main views that can be shown.

    With several checkpoints to compare, the view that compares them is a main view, too.
    """
    for name, view in VIEWS.items():
        is_comparison = name == "distributions" and len(inspected.choice.checkpoint) > 1
        is_main = is_comparison or name not in NOT_IN_PAGE
        if is_main and not inspected.missing(view.needs, name):
            yield name


def _offers(inspected: Inspected, names_on_page: list[str]) -> dict[str, str]:
    """Return commands for views that are not on the page, each with a summary of the view.

    The commands give the views what they lack, such as a sentence. Weights and tokenizers cannot be
    given: a view that needs them is not offered if they are missing.
    """
    offers = {}
    for name, view in VIEWS.items():
        has_vocabulary = view.needs == "vocabulary" and inspected.has_tokenizers
        is_possible = inspected.has_weights or has_vocabulary
        if is_possible and name not in names_on_page:
            command = shell_command("inspect", inspected.place, name)
            if "source" in view.options:
                source = inspected.choice.source or "Hello!"
                command = shell_command("inspect", inspected.place, name, source=source)
            offers[command] = view.summary
    return offers


def _facts(inspected: Inspected, view_options: Collection[str]) -> dict[str, str]:
    """Return names and values for the top of the page.

    Args:
        inspected: The model and the sentence.
        view_options: Names of the options that the views on the page have.
    """
    config = inspected.config
    model = config.model
    choice = inspected.choice
    source_name = name_of(config.source_language)
    target_name = name_of(config.target_language)
    num_parameters = sum(parameter.numel() for parameter in inspected.structure.parameters())
    facts = {
        "Path": str(inspected.place),
        "Languages": f"{source_name} \N{RIGHTWARDS ARROW} {target_name}",
        "Model": f"{model.encoder_layers} encoder and {model.decoder_layers} decoder layers, "
        f"{model.num_heads} heads, width {model.model_dim:,}, {num_parameters:,} parameters",
    }
    if inspected.is_folder and "checkpoint" in view_options:
        facts["Checkpoint"] = inspected.checkpoint
    elif "layer" in view_options and choice.source:  # a view runs the model on the sentence
        facts["Checkpoint"] = f"none: random weights (seed {inspected.seed}), not trained"
    if choice.source and "source" in view_options:
        facts["Source"] = choice.source
        if choice.target is not None:
            facts["Target"] = choice.target
        elif inspected.has_weights:
            translation = inspected.tokenizers.target.decode(inspected.target_ids)
            facts["Translation by the model"] = translation
        elif not inspected.is_folder:
            facts["Target"] = "a copy of the source, because an untrained model cannot translate"
    return facts
