
// Numbers of cells, arcs of a token, heads on and off, one step at a time: by pointer, touch and
// keyboard. Must not contain XML markup characters.
const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));
const make = (name, values) => Object.assign(document.createElement(name), values);
const between = (low, n, high) => Math.max(low, Math.min(high, n));
const apart = (text) => `\u2068${text}\u2069`;
const tip = document.body.appendChild(make("output", { className: "readout" }));
let told = null;
const hide = (svg) => { if (svg === told) tip.textContent = ""; };
const tell = (svg, x, y, text, below) => {
  const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
  told = svg;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${scrollX + between(4, at.x - box.width / 2, document.body.clientWidth - box.width - 4)}px`;
  const above = at.y - box.height - 8;
  const top = below ? Math.min(at.y + 6, innerHeight - box.height - 6) : above > 0 ? above : at.y + 24;
  tip.style.top = `${scrollY + top}px`;
};
// Calls back with the position of the pointer in the drawing, and with the steps of arrow keys.
const explore = (svg, point, move, leave) => {
  svg.tabIndex = 0;
  svg.setAttribute("role", "application");
  svg.setAttribute("aria-roledescription", "drawing, move with the arrow keys");
  let touched = false;
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (event) => {
    touched = true;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    point(at.x, at.y);
  });
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  svg.addEventListener("focus", () => { if (!touched) move(0, 0); });
  svg.addEventListener("blur", () => { touched = false; leave(); });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") leave();
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(...step);
  });
};
for (const svg of all("[data-box]")) {
  const [left, top, width, height] = svg.dataset.box.split(" ").map(Number);
  // The drawing for phones has the numbers of the drawing before it, and perhaps several lines for a row.
  const { dataset } = all("[data-values]", svg.closest("figure"))[0];
  const rows = JSON.parse(dataset.rows);
  const columns = JSON.parse(dataset.columns);
  const values = dataset.values.split("|").map((line) => line.split(";"));
  const length = Number(svg.dataset.line || columns.length);
  const lines = Math.ceil(columns.length / length);
  let [row, column] = [0, 0];
  const place = () => [Math.floor(row / lines), (row % lines) * length + column];
  const figure = svg.closest("figure.grid");
  const frame = document.createElementNS(svg.namespaceURI, "rect");
  const leave = () => { frame.remove(); hide(svg); };
  const show = () => {
    const edges = { class: "cursor", x: left + column * width, y: top + row * height, width, height };
    for (const name in edges) frame.setAttribute(name, edges[name]);
    svg.append(frame);
    const [y, x] = place();
    const names = [rows[y], columns[x]].filter(Boolean).map(apart).join(", ");
    tell(svg, left + (column + 0.5) * width, top + row * height, `${names}: ${figure ? "largest weight " : ""}${values[y][x] || "masked"}`);
  };
  explore(svg, (x, y) => {
    [row, column] = [Math.floor((y - top) / height), Math.floor((x - left) / width)];
    const [down, right] = place();
    if (rows[down] === undefined || columns[right] === undefined || column >= length) {
      [row, column] = [0, 0];
      leave();
    } else show();
  }, (down, right) => {
    row = between(0, row + down, rows.length * lines - 1);
    column = between(0, column + right, Math.min(length, columns.length - (row % lines) * length) - 1);
    show();
  }, leave);
  // A small map opens its head in the drawing of its layer.
  const target = figure ? figure.nextElementSibling.querySelector("div.steps") : null;
  const open = () => { if (target) target.open(...place()); };
  svg.addEventListener("click", open);
  svg.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
}
for (const svg of all("[data-middle]")) {
  const [middle, height] = [Number(svg.dataset.middle), Number(svg.dataset.row)];
  const bundles = all(".link", svg);
  const names = all(".key span", svg.closest("figure"));
  const labels = names.map((name) => `, ${name.textContent}`);
  const tokens = all(".token", svg);
  const sides = ["end", "start"].map((side) => tokens.filter((text) => text.classList.contains(side)));
  const arcs = bundles.flatMap((bundle, head) => all("path", bundle).map((path) => {
    const [from, to, weight] = path.dataset.arc.split(" ");
    return { path, ends: [Number(from), Number(to)], weight, head, bundle };
  }));
  let [side, row] = [0, 0];
  const mark = (is) => {
    for (const arc of arcs) arc.path.classList.toggle("off", !is(arc));
    sides.forEach((texts, at) => texts.forEach((text, index) => {
      text.classList.toggle("off", !arcs.some((arc) => is(arc) ? arc.ends[at] === index : false));
    }));
  };
  const leave = () => {
    mark(() => true);
    for (const text of tokens) text.classList.remove("off", "on");
    hide(svg);
  };
  const show = () => {
    const is = (arc) => arc.ends[side] === row ? !arc.bundle.classList.contains("off") : false;
    mark(is);
    const text = sides[side][row];
    tokens.forEach((each) => each.classList.toggle("on", each === text));
    const strongest = arcs.filter(is).sort((a, b) => b.weight - a.weight).slice(0, 5).map((arc) => {
      const other = sides[1 - side][arc.ends[1 - side]].textContent;
      return `${apart(other)} ${arc.weight}${labels[arc.head] || ""}`;
    });
    const lines = [apart(text.textContent), ...strongest].join("\n");
    tell(svg, middle, Math.max(...sides.map((texts) => texts.length)) * height, lines, true);
  };
  explore(svg, (x, y) => {
    [side, row] = [x > middle ? 1 : 0, Math.floor(y / height)];
    if (sides[side][row]) show();
    else {
      row = 0;
      leave();
    }
  }, (down, right) => {
    side = between(0, side + right, 1);
    row = between(0, row + down, sides[side].length - 1);
    show();
  }, leave);
  // Each name becomes a button that hides its arcs; two clicks leave only its arcs.
  const buttons = names.map((name, head) => {
    const button = make("button", { type: "button", className: name.className });
    button.append(...name.childNodes);
    name.replaceWith(button);
    button.addEventListener("click", () => set(head, bundles[head].classList.contains("off")));
    button.addEventListener("dblclick", () => only(head));
    return button;
  });
  const set = (head, on) => {
    bundles[head].classList.toggle("off", !on);
    buttons[head].setAttribute("aria-pressed", on);
  };
  const only = (head) => buttons.forEach((_, index) => set(index, index === head));
  buttons.forEach((_, head) => set(head, true));
  if (buttons.length) {
    const every = make("button", { type: "button", textContent: "All" });
    every.addEventListener("click", () => buttons.forEach((_, head) => set(head, true)));
    buttons[0].parentElement.append(every);
  }
  svg.only = only;
}
for (const steps of all("div.steps")) {
  const parts = all(":scope > .step", steps);
  const bar = make("p", { className: "bar" });
  const menu = make("select", { ariaLabel: "Step" });
  menu.append(...parts.map((step, index) => new Option(step.querySelector("h4").textContent, index)));
  const place = make("output", {});
  const [back, next] = ["Back", "Next"].map((name) => make("button", { type: "button", textContent: name }));
  let now = 0;
  const show = (to) => {
    now = between(0, to, parts.length - 1);
    parts.forEach((step, index) => step.classList.toggle("now", index === now));
    menu.selectedIndex = now;
    place.textContent = `${now + 1} of ${parts.length}`;
    // Not `disabled`: a disabled button would lose the focus.
    back.setAttribute("aria-disabled", now === 0);
    next.setAttribute("aria-disabled", now === parts.length - 1);
    hide(told);
    markRegions();
  };
  back.addEventListener("click", () => show(now - 1));
  next.addEventListener("click", () => show(now + 1));
  menu.addEventListener("change", () => show(menu.selectedIndex));
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.target === menu || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(now + step);
  });
  steps.open = (to, head) => {
    show(to);
    const svg = parts[now].querySelector("[data-middle]");
    if (svg) svg.only(head);
    menu.focus({ preventScroll: true });
    steps.scrollIntoView({ block: "nearest" });
  };
  bar.append(back, menu, next, place);
  steps.prepend(bar);
  steps.classList.add("live");
  show(0);
}
// A link into the folded part opens it.
const reveal = (hash) => {
  const part = hash ? document.getElementById(hash.slice(1)) : null;
  const fold = part ? part.closest("details") : null;
  if (fold) fold.open = true;
};
reveal(location.hash);
all(".hint").forEach((hint) => { hint.hidden = false; });
// The contents mark the section on the screen.
const links = all("nav a");
for (const link of links) link.addEventListener("click", () => reveal(link.hash));
const seen = new IntersectionObserver((entries) => {
  const top = entries.filter((entry) => entry.isIntersecting)[0];
  if (top) for (const link of links) {
    const is = link.hash === `#${top.target.id}`;
    link.setAttribute("aria-current", is);
    if (is) link.parentElement.parentElement.scrollTo({ left: link.offsetLeft - 40 });
  }
}, { rootMargin: "-20% 0px -75% 0px" });
all("main section[id]").forEach((section) => seen.observe(section));
