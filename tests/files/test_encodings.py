"""Texts in old encodings: which one is probable, and how they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.files.encoding import open_text, probable_encoding

TEXTS = {
    "German": "Für die Bücher müssen wir größere Häuser bauen; schöne Grüße aus Österreich.",
    "French": "L'été dernier, où étaient les élèves français ? À la fenêtre, près du château.",
    "Spanish": "El niño pequeño comió piña mañana; ¿dónde está el señor? Ningún español lo sabrá.",
    "Czech": "Příliš žluťoučký kůň úpěl ďábelské ódy, řekl šťastný člověk u řeky.",
    "Russian": "Сегодня хорошая погода, и мы пойдём гулять в большой парк.",
    "Greek": "Σήμερα έχει πολύ καλό καιρό και θα πάμε στο πάρκο με τους φίλους μας.",
    "Japanese": "今日は天気がいいので、友達と一緒に公園へ散歩に行きます。",
}


@pytest.mark.parametrize(("language", "encoding"), [
    ("German", "latin-1"), ("German", "utf-16-le"), ("French", "cp1252"), ("Spanish", "latin-1"),
    ("Czech", "cp1250"), ("Russian", "cp1251"), ("Russian", "koi8-r"), ("Greek", "cp1253"),
    ("Japanese", "shift_jis"), ("French", "utf-16-be"),
])  # fmt: skip
def test_a_text_is_the_same_in_its_probable_encoding(language: str, encoding: str) -> None:
    content = "\n".join([TEXTS[language]] * 5).encode(encoding)
    probable = probable_encoding(content)
    assert probable is not None
    assert content.decode(probable) == content.decode(encoding)


def test_text_in_utf16_without_a_mark_is_read_as_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("für\nzwei\n".encode("utf-16-le"))
    with open_text(path, "utf-16") as stream:
        assert stream.read().decode() == "für\nzwei\n"
    path.write_bytes("für\n".encode("utf-16"))
    with open_text(path, "utf-16") as stream:
        assert stream.read().decode().lstrip("\ufeff") == "für\n"
