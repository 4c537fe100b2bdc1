
// Sorts and searches all sentences of a test set. Must not contain XML markup characters.
const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
};
const wordsOf = (text) => text.split(/\s+/u).filter(Boolean);
// common[i][j]: the number of words that both texts have from word i and word j on, in order.
const commonWords = (words, expected) => {
  const common = Array.from({ length: words.length + 1 }, () => new Uint16Array(expected.length + 1));
  for (let i = words.length - 1; i > -1; i -= 1) {
    for (let j = expected.length - 1; j > -1; j -= 1) {
      const longest = Math.max(common[i + 1][j], common[i][j + 1]);
      common[i][j] = words[i] === expected[j] ? common[i + 1][j + 1] + 1 : longest;
    }
  }
  return common;
};
// The parts of a text and of the most similar reference, each with its element.
const differences = (text, references) => {
  const words = wordsOf(text);
  const compared = references.map((reference) => {
    const expected = wordsOf(reference);
    if (words.length * expected.length > 4e6) return null; // too slow
    const common = commonWords(words, expected);
    return { expected, common, share: common[0][0] / Math.max(1, words.length + expected.length) };
  });
  if (compared.includes(null)) return [["", words]];
  const { expected, common } = compared.reduce((one, other) => (other.share > one.share ? other : one));
  const parts = [["", []]];
  const add = (tag, word) => {
    if (parts.at(-1)[0] !== tag) parts.push([tag, []]);
    parts.at(-1)[1].push(word);
  };
  let [i, j] = [0, 0];
  while (words.length > i || expected.length > j) {
    if (words[i] === expected[j]) {
      add("", words[i]);
      [i, j] = [i + 1, j + 1];
    } else if (words.length === i || (expected.length > j ? common[i][j + 1] >= common[i + 1][j] : false)) {
      add("del", expected[j]);
      j += 1;
    } else {
      add("mark", words[i]);
      i += 1;
    }
  }
  return parts;
};
const sentenceOf = (all, row) => {
  const list = document.createElement("dl");
  list.className = "sample";
  const add = (name, parts) => {
    const [head, text] = ["dt", "dd"].map((tag) => document.createElement(tag));
    [head.dir, text.dir, head.textContent] = ["auto", "auto", name];
    for (const [tag, words] of parts) {
      const part = tag ? document.createElement(tag) : new Text();
      part.textContent = words.join(" ");
      if (words.length > 0) text.append(part, " ");
    }
    list.append(head, text);
  };
  const addText = (name, text) => add(name, [["", [text]]]);
  const references = all.references.map((lines) => lines[row]);
  addText("line", (row + 1).toLocaleString("en"));
  if (all.source.length > 0) addText("source", all.source[row]);
  for (const reference of references) addText("reference", reference);
  for (const { name, lines, scores, notes } of all.systems) {
    add(`${name}, chrF ${scores[row].toFixed(1)}${notes[row]}`, differences(lines[row], references));
  }
  return list;
};
// The order of the rows: the lowest value comes first.
const orders = {
  line: () => (row) => row,
  low: (scores) => (row) => scores[row],
  high: (scores) => (row) => -scores[row],
  ahead: (scores, other) => (row) => other[row] - scores[row],
  apart: (scores, other) => (row) => -Math.abs(other[row] - scores[row]),
};
const browse = (part) => {
  const [form, list, more] = ["form", ".text", ".all"].map((name) => part.querySelector(name));
  const [order, query] = [form.elements.order, form.elements.query];
  const status = form.querySelector("output");
  const made = new Map(Array.from(list.children, (each) => [Number(each.dataset.row), each]));
  let [all, texts, limit, loading] = [null, null, made.size, null];
  const load = async () => {
    all = await unpack(part.dataset.packed);
    const columns = [all.source, ...all.references, ...all.systems.map(({ lines }) => lines)];
    texts = all.references[0].map((_, row) => columns.map((lines) => lines[row] || "").join("\n").toLowerCase());
  };
  const update = async () => {
    loading ||= load();
    await loading;
    const [kind, index] = order.value.split(" ");
    const scores = all.systems.map((system) => system.scores);
    const value = orders[kind](scores[index], scores[1 - index]);
    const wanted = query.value.trim().toLowerCase();
    const rows = Array.from(texts.keys()).filter((row) => texts[row].includes(wanted));
    rows.sort((one, other) => value(one) - value(other) || one - other);
    const shown = rows.slice(0, limit);
    for (const row of shown) if (!made.has(row)) made.set(row, sentenceOf(all, row));
    list.replaceChildren(...shown.map((row) => made.get(row)));
    more.hidden = rows.length === shown.length;
    const counts = [shown.length, rows.length].map((count) => count.toLocaleString("en"));
    status.textContent = `${counts.join(" of ")} sentences${wanted ? " with this text" : ""}`;
  };
  const restart = () => {
    limit = 20;
    update();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  order.addEventListener("change", restart);
  query.addEventListener("input", restart);
  more.addEventListener("click", () => {
    limit += 50;
    update();
  });
  [form.hidden, more.hidden] = [false, false];
  const first = part.querySelector(".first");
  if (first) first.hidden = true;
};
if (window.DecompressionStream) for (const part of document.querySelectorAll("[data-packed]")) browse(part);
