"""``nmt score``: pairs of lines in, as many scores out."""

from __future__ import annotations

from pathlib import Path

from nmt.cli.options import (
    MODEL,
    OUTPUT_FILE,
    SET,
    TAG,
    Format,
    ModelOptions,
    file_name,
    flag,
    given,
)

EPILOG = """\b
Examples:
  nmt score runs/demo --source test.en --target test.de > scores
  paste in.en out.de | nmt score runs/demo --format json
  nmt score runs/demo --with runs/second --source in.en.gz --target in.de.gz --sum -o scores.gz
"""


def score(
    *,
    model: Path = MODEL,
    options: ModelOptions,
    source: Path | None = flag(
        metavar="FILE",
        parser=file_name,
        help="Source lines; - is standard input. Without files, standard input holds "
        "source<TAB>target.",
        show_default=False,
    ),
    target: Path | None = flag(
        metavar="FILE",
        parser=file_name,
        help="Translations: line i translates line i of the source; - is standard input.",
        show_default=False,
    ),
    output_file: Path | None = OUTPUT_FILE,
    plain_sum: bool = flag(
        "--sum", default=False, help="Write log probabilities without length normalisation."
    ),
    format_: Format = flag(
        "--format", default="text", help="One number per line, or one JSON object with all tokens."
    ),
    length_penalty: float | None = flag(
        min=0, metavar="X", help="Exponent of the length normalisation."
    ),
    tag: str | None = TAG,
    batch_tokens: int | None = flag(
        min=1, metavar="N", help="Source tokens, and target tokens, of a batch."
    ),
    set_: list[str] = SET,
) -> None:
    """Score given translations: log probability per token.

    Writes one line for each pair, in order: the score that the search would show for that
    translation, 0 at best. Blank to blank is 0; a blank translation of a line is the probability of
    ending at once; a translation of a blank line, and a pair too long for the model, is -inf (JSON:
    null).
    """
    from nmt.commands.score import ScoreFormat
    from nmt.commands.score import score as run

    run(
        model,
        source,
        target,
        output_file,
        style=ScoreFormat(format_, plain_sum),
        tag=tag,
        overrides=set_,
        loading=options.loading(),
        **given(length_penalty=length_penalty, batch_tokens=batch_tokens),
    )
