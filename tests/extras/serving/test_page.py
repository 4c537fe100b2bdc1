"""The page in a browser, with a server of models that Marian trained."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.options import ImportOptions
from tests.extras.serving.process import Server

T = TypeVar("T")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update",
    "--window-size=1280,900",
)  # fmt: skip
TEXT = "The boy plays with his dog.\n\n\U0001f600 I don't know where Tom lives. Come back!"
FAKE_ANSWERS = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const answer = await real(path, options), text = await answer.text();
  const type = answer.headers.get("Content-Type"), isStream = type.includes("ndjson");
  const lines = text.split("\\n").filter(Boolean).map((line) => JSON.parse(line));
  const body = isStream ? {translations: lines} : JSON.parse(text);
  await (%s)(body, options);
  const sent = isStream && !body.status
    ? body.translations.map((line) => `${JSON.stringify(line)}\\n`).join("") : JSON.stringify(body);
  const headers = {"Content-Type": body.status ? "application/json" : type};
  return new Response(sent, {status: body.status ?? answer.status, headers});
};
"""
"""Replaces answers of the server by a function of the answer and the request. The lines of a stream
are the ``translations`` of an answer."""
HELD_STREAM = """
const real = window.fetch, bytes = new TextEncoder();
window.fetch = async (path, options) => {
  const answer = await real(path, options), lines = (await answer.text()).trimEnd().split("\\n");
  const body = new ReadableStream({start(stream) {
    window.release = () => {
      const line = bytes.encode(`${lines.shift()}\\n`), half = line.length / 2;
      stream.enqueue(line.slice(0, half));
      stream.enqueue(line.slice(half));
      if (!lines.length) stream.close();
    };
  }});
  return new Response(body, {headers: {"Content-Type": "application/x-ndjson"}});
};
"""
"""The lines of an answer come, in halves, when the test calls ``release``."""
NO_ANSWER = "window.fetch = () => new Promise(() => {})"
CALIBRATED = "for (const model of served.models) model.confidence = true; showRoute();"
PASTE_TERMS = """
const [input, text] = arguments, clipboardData = new DataTransfer();
clipboardData.setData("text/plain", text);
const event = new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true});
if (input.dispatchEvent(event)) input.value = text;
"""
"""Pastes text into an input, as a browser does unless the page handles it."""
FAST_EDITS = """
const [last, done] = arguments, source = document.getElementById("source");
const target = document.getElementById("target"), texts = [];
new MutationObserver(() => texts.push(translation())).observe(target, {childList: true});
(async () => {
  for (let count = 0; count < 50; count += 1) {
    source.value = count < 49 ? `I have ${count} dogs.` : last;
    source.dispatchEvent(new Event("input"));
    await new Promise((then) => setTimeout(then, count % 10 ? 5 : 265));
  }
  while (target.className.includes("stale")) await new Promise((then) => setTimeout(then, 50));
  setTimeout(() => done(texts), 500);
})();
"""
"""Edits with pauses that are long enough for requests; returns every text shown meanwhile."""
PASTE = """
const source = document.getElementById("source");
[source.value] = arguments;
source.dispatchEvent(new Event("input"));
"""
SENT = """
window.sent = [];
const real = window.fetch;
window.fetch = (path, options) => {
  sent.push(...JSON.parse(options.body).texts.map(({text}) => text));
  return real(path, options);
};
"""
"""Records the texts of all requests."""
DROP = """
const data = new DataTransfer(), [name, text] = arguments;
data.items.add(new File([text], name));
document.getElementById("source").dispatchEvent(
  new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
"""


class Page:
    def __init__(self, driver: Chrome, server: Server) -> None:
        self.driver, self.server = driver, server

    def __getitem__(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text: str, *values: Any) -> Any:
        return self.driver.execute_script(text, *values)

    def wait(self, condition: Callable[[], T]) -> T:
        """Wait until something is true; return it."""
        return WebDriverWait(self.driver, 15, 0.05).until(lambda _: condition())

    def open(self) -> None:
        self.driver.get(f"http://127.0.0.1:{self.server.port}/")
        self.wait(lambda: self["status"].text == "Ready.")

    def shown(self) -> str:
        """Wait for the translation of the latest text; return it."""
        self.wait(lambda: self.all("#target[aria-busy=false]"))
        return str(self.script("return shown ? translation() : ''"))

    def type(self, text: str) -> str:
        """Replace the source; return its translation."""
        self["source"].clear()
        self.script("arguments[0].value = arguments[1]", self["source"], text[:-1])  # with emoji
        self["source"].send_keys(text[-1])
        return self.shown()

    def paste(self, text: str) -> None:
        """Replace the source at once, without leaving it empty between."""
        self.script(PASTE, text)

    def menu(self, least: int = 2) -> list[str]:
        """Wait for at least `least` alternatives; return their first words."""
        self.wait(lambda: len(self.all("#menu b")) >= least)
        return self.texts("#menu b")

    def terms(self) -> list[list[str]]:
        """Return the cells of the rows of the glossary."""
        return list(self.script("return termRows().map(cellsOf)"))

    def write_term(self, row: int, source: str, target: str) -> None:
        cells = self.all(f"#terms tbody tr:nth-child({row}) input")
        for cell, text in zip(cells, (source, target), strict=True):
            cell.clear()
            cell.send_keys(text)

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def texts(self, selector: str) -> list[str]:
        return [str(node.get_property("textContent")) for node in self.all(selector)]

    def expected(self, text: Any, **fields: Any) -> str:
        return str(self.server.translate(text, model="en-de", **fields)[0]["translation"])

    def pick(self, name: str, value: str) -> None:
        Select(self[name]).select_by_value(value)

    def fake_answers(self, change: str) -> None:
        self.script(FAKE_ANSWERS % change)

    def problems(self) -> list[str]:
        """Return the messages of the console since the last call: errors, and what CSP blocked."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]


@pytest.fixture(scope="module")
def served(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model under the names of two pairs."""
    place, source = tmp_path_factory.mktemp("served"), shared_data / "marian_models/transformer"
    for name in ("en-de", "de-en"):
        import_model(ImportOptions(source=source, output=place / name, languages=name))
    return {folder.name: folder for folder in sorted(place.iterdir(), reverse=True)}


@pytest.fixture(scope="module")
def driver(browser: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """An installed Chromium with its chromedriver; nothing is downloaded."""
    if (chromedriver := shutil.which("chromedriver")) is None:
        pytest.skip("chromedriver is not installed")
    options, place = ChromeOptions(), tmp_path_factory.mktemp("browser")
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={place / 'profile'}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(place)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = Chrome(options=options, service=Service(chromedriver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def server(served: dict[str, Path]) -> Iterator[Server]:
    """A server of both directions."""
    started = Server(served)
    yield started
    started.close()


@pytest.fixture
def page(driver: Chrome, server: Server) -> Iterator[Page]:
    """The opened page. At the end: no requests to other servers, and an empty console."""
    page = Page(driver, server)
    page.open()
    page.pick("from", "en")
    page.pick("to", "de")
    yield page
    page.script("sessionStorage.clear(); localStorage.clear()")
    asked = page.script("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert {url.split("/v1/")[0] for url in asked} == {f"http://127.0.0.1:{server.port}"}
    assert page.problems() == []


@pytest.mark.long
def test_aligned_words_light_up(page: Page) -> None:
    page.type(TEXT)
    [answer] = page.server.translate(TEXT, model="en-de", want=["alignment"])
    words = answer["words"]
    source, target = ([x["text"] for x in words[side]] for side in ("source", "target"))
    links = [tuple(map(int, link.split("-"))) for link in answer["alignment"].split()]
    word = target.index("Junge")
    ActionChains(page.driver).move_to_element(page.all("#target .word")[word]).perform()
    assert page.texts(".lit") == [source[i] for i, j in links if j == word] == ["boy"]
    assert "probability" in page["about"].text
    page["source"].send_keys(Keys.CONTROL + Keys.HOME)  # the caret stands in the first word
    first = [target[j] for i, j in links if i == 0]
    page.wait(lambda: page.texts(".lit") == first)


@pytest.mark.long
def test_a_translation_continues_from_a_chosen_word(page: Page) -> None:
    first = page.type(TEXT)
    page.all("#target .word")[1].click()
    prefix = f"{first.split()[0]} {page.menu()[1]}"
    page.all("#menu button")[1].click()
    expected = page.expected({"text": TEXT.split("\n")[0], "prefix": prefix}, split=False)
    assert page.wait(lambda: page.shown() != first)
    assert expected.startswith(prefix)
    assert page.shown().splitlines() == [expected, *first.splitlines()[1:]]
    page.all("#target .word")[1].click()
    assert page.menu(3)[-1] == "Undo the choice"
    page.all("#menu button:last-child b")[0].click()
    assert page.wait(lambda: page.shown() == first)


@pytest.mark.long
def test_a_choice_is_marked_contradicted_by_the_glossary_and_undone_in_place(page: Page) -> None:
    first = page.type("The boy plays with his dog.")
    page.all("#target .word")[1].click()
    chosen = page.menu()[1]
    page.all("#menu button")[1].click()
    page.wait(lambda: page.texts(".fixed") == [first.split()[0], chosen])
    page["glossary"].click()
    page["forbidden"].send_keys(chosen)
    page.wait(lambda: "the glossary forbids" in page["notes"].text)
    assert page.texts(".fixed")[1:] == [chosen]  # the choice wins
    page["forbidden"].clear()
    page.shown()
    page.all(".undo")[0].click()
    assert page.wait(lambda: page.shown() == first and not page.all(".fixed, .undo"))


@pytest.mark.long
def test_only_changed_sentences_are_translated_again(page: Page) -> None:
    """Each text follows the text before it; what is shown is the translation of all of it."""
    page.script(SENT)
    start = "The boy plays. A dog sleeps.\nTom lives here. Where is he?"
    for text, expected in (
        (start, start),
        (start.replace("lives", "works"), "Tom works here."),
        (f"{start} He left.", "Tom lives here. Where is he? He left."),
        (f"\n {start} He left.", "\n The boy plays."),
        (f"{start.replace(chr(10), ' ')} He left.", None),  # two lines become one
        (start.replace("plays. A", "plays A"), None),
        (start.replace("boy plays.", 'boy "plays.'), None),  # a quotation joins sentences
        (start.replace("A dog sleeps.\n", ""), None),
        (start.replace("plays.", "plays.\n\n"), None),
    ):
        page.script("sent.length = 0")
        page.paste(text)
        assert page["status"].text == "Translating…"
        assert page.shown() == page.expected(text)
        assert expected in (None, *page.script("return sent"))


@pytest.mark.long
def test_text_and_glossary_survive_a_reload(page: Page) -> None:
    page["glossary"].click()
    page["forbidden"].send_keys("Junge")
    shown = page.type(TEXT)
    page.driver.refresh()
    page.wait(lambda: page.shown() == shown)
    assert page["source"].get_property("value") == TEXT
    assert page["glossary"].get_property("textContent") == "Glossary (1)"


@pytest.mark.long
@pytest.mark.parametrize("answer", ["", "null", "{}", "<html>", '{"translations": [{}]}'])
def test_the_answer_of_a_proxy_gives_a_sentence(page: Page, answer: str) -> None:
    page.script("const [text] = arguments; window.fetch = async () => new Response(text)", answer)
    page["source"].send_keys("A dog.")
    page.wait(lambda: "does not come from nmt serve" in page["status"].text)


@pytest.mark.long
@pytest.mark.parametrize(("change", "kept"), [
    ("Object.assign(body, late)", ""),  # no sentence
    ("Object.assign(body.translations[1], late)", "Only the first sentence is translated."),
])  # fmt: skip
def test_a_text_that_takes_too_long_stays_and_is_tried_again(
    page: Page, change: str, kept: str
) -> None:
    """Whether the time is over before the answer begins, or after its first sentence."""
    late = '{status: 504, error: "Late.", fix: "", sentences: undefined}'
    page.script(f"window.late = {late}")
    page.fake_answers(f"(body) => window.late && {change}")
    text = "A dog. A cat."
    page["source"].send_keys(text)
    page.wait(page["again"].is_displayed)
    seconds = page.script("return served.limits.deadline")
    assert f"more than {seconds} s: it is slow or busy" in page["status"].text
    assert page["source"].get_property("value") == text
    assert page["about"].text == kept
    page.script("window.late = null")
    page["again"].send_keys(Keys.ENTER)
    assert page.shown() == page.expected(text)
    assert not page["again"].is_displayed()
    assert page.script("return document.activeElement.id") == "status"  # the focus is not lost


@pytest.mark.long
def test_a_busy_server_is_tried_again_and_a_file_on_demand(page: Page) -> None:
    page.script("window.isBusy = true")
    busy = '{status: 503, error: "Busy.", fix: "Try again later."}'
    page.fake_answers(f"(body) => window.isBusy && Object.assign(body, {busy})")
    page["source"].send_keys("A dog.")
    page.wait(lambda: page["status"].text == "Busy. Trying again in 1 s.")
    assert not page["again"].is_displayed()
    page.script(DROP, "notes.txt", "A cat.")
    page.wait(lambda: page.texts("#files span") == ["Busy. Try again later."])
    page.script("window.isBusy = false")
    assert page.shown() == page.expected("A dog.")
    page.all("#files button")[0].click()
    page.wait(lambda: page.texts("#files span") == ["1 text translated"])


@pytest.mark.long
def test_a_long_text_scrolls_inside_and_too_long_a_text_is_explained(page: Page) -> None:
    page.type("The boy plays with his dog.\n" * 40)
    bottoms = [page[name].rect for name in ("status", "copy")]
    height = page.script("return innerHeight")
    assert all(box["y"] + box["height"] <= height for box in bottoms)
    page.script(SENT)
    page.paste("a" * 20_001)
    page.wait(lambda: "at most 20,000" in page["status"].text)
    assert page["status"].get_attribute("class") == "fault"
    assert page.script("return sent") == []
    page.script(DROP, "long.txt", "a" * 20_001)
    page.wait(lambda: "at most 20,000" in page.all("#files .fault")[0].text)


@pytest.mark.long
def test_without_javascript_the_page_says_so(page: Page) -> None:
    off = {"value": True}
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", off)
    try:
        page.driver.get(f"http://127.0.0.1:{page.server.port}/")
        assert "needs JavaScript" in page.all("noscript")[0].text
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    page.open()


def test_markup_stays_text(page: Page) -> None:
    text = '<img src=x onerror="document.title=1"> <script>document.title=1</script>'
    page.fake_answers("""({translations: [found]}, {body}) => {
      const {text} = JSON.parse(body).texts[0], end = text.length;
      const all = {translation: text, score: -1};
      const own = [{text, start: 0, end}], words = {source: own, target: own};
      Object.assign(found, {translation: text, alignment: "0-0", words});
      found.sentences = [{source: [0, end], target: [0, end], alternatives: [all], alarms: [text]}];
    }""")
    page["best"].click()
    page.type(text)
    ActionChains(page.driver).move_to_element(page.all("#target .word")[0]).perform()
    page.script(DROP, f"{text}.docx", "")
    assert page.shown() == text
    assert page.texts("#nbest button") == page.texts("#mirror .word") == [text]
    assert page.texts("#files b") == [f"{text}.docx"]
    assert text in page["about"].text
    assert text in page["notes"].text
    assert page.driver.title == "nmt: translate"
    assert page.all("img, main script") == []


@pytest.mark.long
def test_the_last_of_many_edits_wins(page: Page) -> None:
    last = "Where does Tom live?"
    page.type("A dog.")
    page.fake_answers("""(found, {body}) => body.includes("dogs") &&
                         new Promise((then) => setTimeout(then, 400))""")
    texts = page.driver.execute_async_script(FAST_EDITS, last)
    assert page.shown() == texts[-1] == page.expected(last)
    assert "" not in texts


@pytest.mark.long
def test_terms_are_required_and_forbidden_and_the_command_line_gives_the_same(page: Page) -> None:
    page["glossary"].click()
    page["required"].send_keys("dog = Köter")
    page["forbidden"].send_keys("Junge")
    shown = page.type(TEXT)
    first, *_, last = shown.splitlines()
    assert "Köter" in first
    assert "Junge" not in first
    assert "Köter" not in last
    assert page["glossary"].get_property("textContent") == "Glossary (2)"
    command = shlex.split(str(page["curl"].get_property("textContent")))
    answer = page.server.post("/v1/translate", json.loads(command[-1])).json()
    texts = [each["translation"] for each in answer["translations"]]
    assert command[1] == f"http://127.0.0.1:{page.server.port}/v1/translate"
    assert texts == page.script("return shown.sentences.map((sentence) => sentence.target.text)")
    assert shown.split() == " ".join(texts).split()


@pytest.mark.long
def test_terms_of_a_glossary_are_opened_edited_and_kept(page: Page, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tKöter|Kötern\n", encoding="utf-8")
    page["glossary"].click()
    page.type("The boy plays with his dog.")
    page["tsv"].send_keys(str(terms))
    page.wait(lambda: "Köter" in page.shown())
    assert page["glossary"].get_property("textContent") == "Glossary (1)"
    page.write_term(1, "boy", "Bube")
    page.wait(lambda: "Bube" in page.shown())
    assert "Köter" not in page.shown()
    page.driver.refresh()
    page.wait(lambda: "Bube" in page.shown())
    assert page.terms() == [["boy", "Bube"], ["", ""]]


def test_rows_of_a_spreadsheet_are_pasted_into_the_glossary_and_removed(page: Page) -> None:
    page["glossary"].click()
    page.script(PASTE_TERMS, page.all("#terms input")[0], "no tab")
    page.write_term(1, "dog", "Hund")
    page["addterm"].click()
    pasted = '"a, b"\tx\r\n"say ""yes"""\t"sag\nja"\tnote\n\nwine glass = Weinglas|Weingläser\n'
    page.script(PASTE_TERMS, page.all("#terms tr:nth-child(2) input")[0], pasted)
    rows = [["a, b", "x"], ['say "yes"', "sag ja"], ["wine glass", "Weinglas|Weingläser"]]
    assert page.terms()[:4] == [["dog", "Hund"], *rows]
    assert page["glossary"].get_property("textContent") == "Glossary (4)"
    lines = ["dog\tHund", *map("\t".join, rows)]
    assert str(page.script("return glossary().glossary")).strip().split("\n") == lines
    page.all("#terms tr:nth-child(2) button")[0].send_keys(Keys.ENTER)
    assert page.terms()[:3] == [["dog", "Hund"], *rows[1:]]
    assert page.script("return document.activeElement.value") == 'say "yes"'
    page.driver.refresh()
    page.wait(lambda: page["status"].text == "Ready.")
    assert page.terms() == [["dog", "Hund"], *rows[1:], ["", ""]]
    page["glossary"].click()
    page["noterms"].click()
    assert page.terms() == [["", ""]]
    assert page.script("return glossary()") == {}


@pytest.mark.long
def test_languages_are_swapped_and_detected(page: Page) -> None:
    german = page.type("The boy plays with his dog.")
    page["swap"].click()
    page.shown()
    assert page["source"].get_property("value") == german
    assert [page[name].get_property("value") for name in ("from", "to")] == ["de", "en"]
    page.pick("from", "auto")
    page.pick("to", "en")
    page.shown()
    assert page.wait(lambda: page["status"].text.startswith("German detected."))


@pytest.mark.parametrize(
    ("route", "sentence"),
    [
        ({"source": "fr", "unchanged": True}, "seems to be French, so it was not translated."),
        ({"source": "en", "unchanged": True}, "in English already, so it was not translated."),
        ({"source": "de", "detected": 3.0}, "not recognised. It was translated as German, perhaps"),
    ],
)
def test_a_text_in_none_of_the_languages_is_said_to_be_so(
    page: Page, route: dict[str, Any], sentence: str
) -> None:
    fields = json.dumps({"model": "de-en", "target": "en", "detected": 99.0, **route})
    page.pick("from", "auto")
    page.pick("to", "en")
    page.fake_answers(f"""({{translations: [found]}}) => {{
      found.route = {fields};
      if (found.route.unchanged) found.sentences = [];
    }}""")
    page.type("Un chien.")
    page.wait(lambda: sentence in page["status"].text)
    status = page["status"].text
    assert "detected" not in status
    assert ("not translated" in page.texts(".badge")) is ("unchanged" in route)
    assert ("from German." in status) is (route["source"] != "en")


def test_the_languages_are_listed_by_name(page: Page) -> None:
    assert page["offer"].text.startswith("English → German, German → English · nmt ")
    assert page.texts("#languages li") == ["English → German", "German → English"]


def test_sentences_appear_as_they_are_ready_and_are_copied_when_all_are_there(page: Page) -> None:
    page.script(HELD_STREAM)
    page["source"].send_keys("A dog. A boy.\n\nA cat.")
    page.wait(lambda: page.script("return window.release !== undefined"))
    first, second, _, last = (
        page.expected("A dog. A boy.\n\nA cat.").replace(". ", ".\n").split("\n")
    )
    for number, expected in ((1, first), (2, f"{first} {second}")):
        page.script("release()")
        count = f"return shown?.sentences.length === {number}"
        page.wait(partial(page.script, count))
        assert page.script("return translation()") == expected
        assert str(page["target"].get_property("textContent")).startswith(expected)
        assert not page["copy"].is_enabled()
        assert "so far" in page["about"].text
    page.script("release()")
    assert page.shown() == f"{first} {second}\n\n{last}"
    assert page["copy"].is_enabled()
    assert page.script("return spoken.textContent") == page.shown()


def test_the_translation_of_an_earlier_text_cannot_be_copied_or_swapped_in(page: Page) -> None:
    page.type("A dog.")
    assert page["copy"].is_enabled()
    page.script(NO_ANSWER)
    page.paste("A dog sleeps.")
    assert not page["copy"].is_enabled()
    assert "text before your change" in page["about"].text
    assert page["target"].value_of_css_property("user-select") == "none"
    page["swap"].click()
    assert page["source"].get_property("value") == "A dog sleeps."


CHOICES = """
const texts = ["A man in thecovered snow.", "A man in the covered snow.", "A man in the snow.",
               "A man in the snow, a", "A man in the", "A woman in the snow."];
return continuations("A man in the", texts.map((translation) => ({translation})))
  .map(({head, tail, text}) => [head, menuItem(head, tail).textContent, text]);
"""


def test_alternatives_follow_the_words_before_them_with_a_space(page: Page) -> None:
    """A subword that continues the last word makes another word of it."""
    assert page.script(CHOICES) == [
        ["covered", "covered snow.", "A man in the covered"],
        ["snow.", "snow.", "A man in the snow."],
        ["snow,", "snow, a", "A man in the snow,"],
    ]


@pytest.mark.long
def test_warnings_and_confidence_are_shown_at_their_sentence(page: Page) -> None:
    page.script(CALIBRATED)
    page.fake_answers("""(body) => Object.assign(body.translations[1].sentences[0],
                         {alarms: ["loop"], confidence: 31.4})""")
    page.type("A dog. A cat. A boy.")
    assert page.texts("#target > :nth-child(2) .badge") == ["⚠ loop", "✗ 31"]
    assert page.texts(".badge") == ["not rated", "⚠ loop", "✗ 31", "not rated"]
    assert "again and again" in page["notes"].text


@pytest.mark.long
def test_a_good_confidence_is_not_shown_beside_a_warning(page: Page) -> None:
    page.script(CALIBRATED)
    page.fake_answers("""(body) => body.translations.forEach(({sentences: [each]}, index) =>
                         Object.assign(each, {alarms: index ? [] : ["loop"], confidence: 92}))""")
    page.type("A dog. A cat.")
    assert page.texts(".badge") == ["⚠ loop", "✓ 92"]


def test_each_sentence_has_one_of_three_ratings_or_the_reason_why_not(page: Page) -> None:
    page.script(CALIBRATED)
    page.fake_answers("""({translations}) => [{confidence: 92.4}, {confidence: 59.9},
      {confidence: 12}, {confidence: null, unrated: "length"}, {confidence: null}].forEach(
      (rating, index) => Object.assign(translations[index].sentences[0], {alarms: []}, rating))""")
    page.type("A dog. A cat. A boy. A man. 12345.")
    badges = page.all(".badge")
    classes = [badge.get_attribute("class") for badge in badges]
    assert classes == [f"badge {kind}" for kind in ("good", "look", "bad", "none", "none")]
    assert [badge.text for badge in badges] == ["✓ 92", "? 60", "✗ 12", "not rated", "not rated"]
    colors = [badge.value_of_css_property("color") for badge in badges]
    assert len(set(colors)) == 4
    counts = "Sentences: 1 good, 1 to check, 1 probably wrong, 2 not rated."
    assert page["status"].text.endswith(counts)
    assert page["status"].get_attribute("class") == "bad"
    words = ("Probably good", "Check this", "Probably wrong", "longer than any", "no words")
    for badge, word in zip(badges, words, strict=True):
        ActionChains(page.driver).move_to_element(badge).perform()
        assert word in page["tip"].text
        assert word in str(badge.get_property("ariaLabel"))
    page.press(Keys.ESCAPE)
    assert not page["tip"].is_displayed()
    page.all("#target .word")[0].send_keys(Keys.END)  # by keyboard
    assert "no words" in page["tip"].text
    num_words = len(page.all("#target > :last-child .word"))
    page.press(*[Keys.ARROW_LEFT] * (num_words + 1))  # to the badge before these words
    assert "longer than any" in page["tip"].text
    page["sure"].click()
    assert [badge.text for badge in page.all(".badge") if badge.is_displayed()] == ["✗ 12"]


def test_without_calibration_nothing_looks_rated(page: Page) -> None:
    page.type("A dog. A cat.")
    assert page.texts(".badge") == ["not rated"]
    page.all(".badge")[0].click()
    assert "cannot rate its translations" in page["tip"].text
    assert page["status"].get_attribute("class") == "none"
    assert page["status"].text.endswith("Sentences: 2 not rated.")


@pytest.mark.long
def test_the_page_requests_a_key(page: Page) -> None:
    page.fake_answers("""(body, {headers}) => headers.Authorization === "Bearer right" ||
                         Object.assign(body, {status: 401, error: "A key is needed."})""")
    page["source"].send_keys("A dog.")
    page.wait(lambda: page.all("dialog[open]"))
    page.press("wrong", Keys.ENTER)
    page.wait(lambda: page.all("dialog[open]") and not page["key"].get_property("value"))
    page.press("right", Keys.ENTER)
    assert page.wait(page.shown) == page.expected("A dog.")
    assert "Bearer $NMT_API_KEY" in str(page["curl"].get_property("textContent"))


@pytest.mark.long
def test_a_dropped_file_is_translated(page: Page) -> None:
    text = "The boy plays.\n\nI don't know.\n"
    page.script(DROP, "notes.txt", text)
    page.wait(lambda: page.all("#files a"))[0].click()
    file = Path(page.driver.capabilities["chrome"]["userDataDir"]).parent / "notes.de.txt"
    page.wait(file.exists)
    assert file.read_text(encoding="utf-8") == page.expected(text)
    assert page.texts("#files span") == ["2 texts translated"]


def test_the_keyboard_is_enough(page: Page) -> None:
    focused = "return document.activeElement.textContent"
    page.press("The boy plays with his dog.")  # the source has the focus
    words = page.shown().split()
    page.press(*[Keys.TAB] * 3)
    assert page.script(focused) == words[0]
    page.press(Keys.ARROW_RIGHT)
    assert page.script(focused) == words[1]
    assert page.texts(".lit") == ["boy"]
    page.press(Keys.ENTER)
    assert page.menu()
    page.press(Keys.ESCAPE)
    assert not page["menu"].is_displayed()
    assert page.script(focused) == words[1]
    page.press(Keys.ENTER)
    chosen = page.menu()[1]
    page.press(Keys.ARROW_DOWN, Keys.ENTER)
    page.wait(lambda: page.shown().split()[1] == chosen)
    assert page.script(focused) == chosen


@pytest.mark.long
def test_the_page_finds_a_server_that_comes_back(page: Page, served: dict[str, Path]) -> None:
    first = page.type("A dog.")
    page.server.close()
    page["source"].send_keys(" A cat.")
    page.wait(lambda: "does not answer" in page["status"].text)
    assert page["again"].is_displayed()
    assert page.all("#target.stale")
    assert page.script("return translation()") == first
    back = Server({"en-de": served["en-de"]}, port=page.server.port)
    try:
        assert page.shown() == str(back.translate("A dog. A cat.", model="en-de")[0]["translation"])
        page.problems()  # the refused connections
    finally:
        back.close()
