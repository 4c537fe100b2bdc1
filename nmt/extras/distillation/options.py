"""Options of `nmt.distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nmt.commands.options import (
    BeamSize,
    File,
    Files,
    FromLanguage,
    Json,
    Overrides,
    Threads,
    ToLanguage,
    TrainingDevice,
)
from nmt.config.flag import Flag, Options, changed
from nmt.errors import ConfigError

_Pair = Annotated[
    tuple[Path, Path] | None, Flag(metavar="SOURCE TARGET", shown="that of the teacher")
]


class DistillOptions(Options):
    """The teachers, the text, and the student.

    Args:
        teachers: Run or model folders; models with the same vocabulary translate
            together, as an ensemble. With `translations`, there is no teacher.
        text: Text in the source language; may be compressed.
        output: Output folder; the student is in its folder `model`.
        translations: Translations of the text by another program, line by line, from which the
            student learns instead of translations of teachers. Needs `from`, `to` and `valid`.
        references: Translations of the text, line by line. The student then learns, of the
            translations in the beam, the one that is most similar to the reference (smoothed BLEU).
        beam_size: Beam size of the teachers; 1 is greedy search.
        config: Configuration of the student. Its training corpora are used together with the
            translations. By default, the student has six encoder layers and one decoder layer,
            and starts with the weights of the first teacher if that is a small model.
        valid: Validation set of the student: a source file and a target file.
        test: Test set of the table: a source file and a target file.
        force: Also use teachers whose translations were no better than by chance in their last
            validation.
    """

    teachers: Annotated[Files, Flag(argument=True, metavar="TEACHER")] = ()
    text: Annotated[Path, Flag(argument=True)]
    output: Annotated[Path, Flag(short="o", metavar="FOLDER")]
    translations: File = None
    references: File = None
    from_: FromLanguage = None
    to: ToLanguage = None
    beam_size: BeamSize = None
    config: Annotated[File, Flag(metavar="CONFIG", shown="values for the size of the text")] = None
    set_: Overrides = ()
    valid: _Pair = None
    test: _Pair = None
    force: bool = False
    device: TrainingDevice = None
    threads: Threads = None
    json: Json = False

    def __post_init__(self) -> None:
        if not self.teachers and self.translations is None:
            raise ConfigError(
                f"{self.text} is a text without a teacher.",
                fix="Pass a TEACHER and the TEXT, or the TEXT and its `translations`.",
            )
        of_teachers = changed(self, "teachers", "references", "beam_size", "force")
        if self.translations is not None and of_teachers:
            raise ConfigError(
                f"`translations` cannot be combined with `{of_teachers[0]}`.",
                fix="Remove one of them: the student learns from a file or from teachers.",
            )
