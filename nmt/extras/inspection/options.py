"""The views and the options of ``nmt inspect``. Imports neither torch nor the views.

To add a view, write a function ``(Inspected) -> Iterator[Figure]`` and an entry in views.toml. The
docstring of the function is the title and the explanation on the page, so write the docstring for
readers of the page. The requirements of a view (`View.needs`) are checked before models or data are
loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nmt.commands.options import Device, Overrides, Tag, file_or_standard
from nmt.config.flag import OF_THE_MODEL, Flag, Options
from nmt.installation import read_toml

OutputFormat = Literal["text", "html", "svg", "json"]

# Requirements of a view. "vocabulary": a tokenizer and a sentence; "model": trained weights;
# "sentence": trained weights and a sentence; "pass": a sentence. For a pass, a configuration gets
# random weights.
Need = Literal["configuration", "vocabulary", "model", "sentence", "pass"]


@dataclass(frozen=True)
class View:
    """Where a view is implemented, its requirements, and its summary."""

    module: str  # Module of this package with the function that has the name of the view.
    needs: Need
    summary: str  # One line for ``--help`` and for the end of the page.
    options: list[str]  # Fields of the options that have an effect.
    is_detail: bool = False  # Whether the page folds it: how a model is built and computes.


VIEWS = {name: View(**row) for name, row in read_toml(__file__, "views.toml").items()}
# The page lists these views only as commands, because they need more time or several checkpoints.
NOT_IN_PAGE = ("distributions", "heads")


class InspectOptions(Options):
    """The view to show, the model and the input to inspect, and the output format.

    Args:
        model: Run folder, model folder or YAML configuration.
        view: View to show, see the list below. Without a view, all main views are on one page.
        output: File to write. The ending sets the format: .html, .svg, .json or .txt.
        format_: Output format. svg contains only drawings; text leaves drawings out.
        open_: Open the result in a web browser.
        worked_examples: Show the numbers of well-known explanations of the Transformer, computed by
            nmt. Cannot be combined with MODEL.
        source: Source sentence, at most 100 subwords. Required by most views.
        target: Translation to inspect.
        layer: Layer to show, numbered from 1 at the bottom.
        head: Attention heads to show, numbered from 1, such as 1,3.
        beam_size: Beam size of the translation by the model. 1 is greedy search.
        checkpoint: Checkpoints of a run folder, separated by commas: best, last, step-N, average or
            untrained. The view `distributions` compares several; other views show the last in
            the list.
        unmasked: Also decode without the causal mask, and show the difference. For the view
            `trace`.
        test: Test set of the configuration, for the view `heads`.
        limit: Maximum number of sentence pairs, for the view `heads`. More pairs take longer.
    """

    # Text below the options in ``--help``.
    notes = "VIEW:\n" + "\n".join(f"  {name:<15}{view.summary}" for name, view in VIEWS.items())

    model: Annotated[Path | None, Flag(argument=True)] = None
    view: Annotated[str | None, Flag(argument=True)] = None
    output: Annotated[
        Path | None, Flag(short="o", parser=file_or_standard, shown="standard output")
    ] = None
    format_: Annotated[OutputFormat | None, Flag(shown="from the file's ending, else text")] = None
    open_: bool = False
    worked_examples: bool = False
    source: str | None = None
    target: Annotated[str | None, Flag(shown="the translation by the model")] = None
    tag: Tag = None
    layer: Annotated[int | None, Flag(min=1, shown="all")] = None
    head: Annotated[tuple[int, ...], Flag(separator=",", metavar="N,N", shown="all")] = ()
    beam_size: Annotated[int | None, Flag(short="b", min=1, shown=OF_THE_MODEL)] = None
    checkpoint: Annotated[tuple[str, ...], Flag(separator=",", metavar="NAMES", shown="best")] = ()
    unmasked: bool = False
    test: Annotated[str | None, Flag(short="t", metavar="NAME", shown="the first test set")] = None
    limit: Annotated[int, Flag(min=1)] = 200
    # For one sentence, a GPU and several threads cost more time than they save.
    device: Device = "cpu"
    threads: Annotated[int, Flag("Number of CPU threads.", min=1)] = 1
    set_: Overrides = ()
