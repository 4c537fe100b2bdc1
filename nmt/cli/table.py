"""Every command: its options, its function, and the words of its help.

The one place that names extras. Examples and descriptions stand here, because they spell flags.
"""

from __future__ import annotations

from nmt.cli.builder import Entry

COMMANDS = {
    "score": Entry(
        "nmt.commands.score_options:ScoreOptions",
        "nmt.commands.score:score",
        """Score given translations: log probability per token.

        Writes one line for each pair, in order: the score that the search would show for that
        translation, 0 at best. Blank to blank is 0; a blank translation of a line is the
        probability of ending at once; a translation of a blank line, and a pair too long for the
        model, is -inf (JSON: null).
        """,
        """
nmt score runs/demo --source test.en --target test.de > scores
paste in.en out.de | nmt score runs/demo --format json
nmt score runs/demo --with runs/second --source in.en.gz --target in.de.gz --sum -o scores.gz
""",
    ),
}
"""By the words behind ``nmt``, in the order of ``nmt --help``."""
