
// Switches the horizontal axis of the charts of runs, and keeps the switches of the page.
// Must not contain XML markup characters.
// Of each run: updates, target tokens and minutes at some updates, from 0.
const runs = Array.from(document.querySelectorAll("[data-clock]"), ({ dataset }) => ({
  name: dataset.run, clock: dataset.clock.split(";").map((moment) => moment.split(" ").map(Number)),
}));
const runOf = (curve) => runs[Math.min(curve, runs.length - 1)];
const lacks = ({ clock }, column) => !(clock.at(-1)[column] > 0);
// The target tokens or minutes of a run at an update; NaN if they were not recorded.
const passed = ({ clock }, step, column, slack) => {
  const at = Math.min(step, clock.at(-1)[0]);
  if (step - at > slack) return NaN;
  const next = Math.max(1, clock.findIndex((moment) => moment[0] >= at));
  const [before, after] = [clock[next - 1], clock[next] ?? []];
  const share = (at - before[0]) / (after[0] - before[0]);
  const number = before[column] + share * (after[column] - before[column]);
  return column === 1 ? Math.round(number) : number;
};
const ticks = (end, count) => {
  const power = 10 ** Math.floor(Math.log10(end / count));
  const spacing = [1, 2, 5, 10].map((size) => size * power).find((size) => size * count >= end);
  return Array.from({ length: Math.floor(end / spacing) + 1 }, (_, index) => index * spacing);
};
const short = (number) =>
  number.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
const label = (text, x, y, kind) => {
  const made = element("text", { class: kind, x, y });
  made.textContent = text;
  return made;
};
const drawings = plots.filter(({ x }) => x === "updates").map((plot) => ({
  plot, end: plot.end, labels: Array.from(plot.svg.querySelector(".x").children),
  paths: Array.from(plot.svg.querySelectorAll("[data-curve] path, .mark"), (path) => ({
    path, run: runOf(path.parentNode.dataset.curve ?? 0), drawn: path.getAttribute("d"),
  })),
}));
const redraw = ({ plot, end, labels, paths }, column, name) => {
  const { left, right } = plot;
  const slack = end / 1000; // The places of points are rounded.
  const ends = runs.map((run) => (lacks(run, column) ? 0 : run.clock.at(-1)[column]));
  const last = column ? Math.max(...ends) || 1 : end;
  const across = (number) => left + ((right - left) * number) / last;
  plot.x = name;
  plot.end = last;
  plot.slack = column ? last / 100 : 0;
  plot.place = (step, curve) => (column ? passed(runOf(curve), step, column, slack) : step);
  plot.reread();
  for (const { path, run, drawn } of paths) {
    const moved = (_, command, x, y, rest) => {
      const place = across(passed(run, (end * (x - left)) / (right - left), column, slack));
      return place >= left ? `${command}${place.toFixed(2)},${y}${rest}` : "";
    };
    const points = /([ML])([-.\de]+),([-.\de]+)(h0|V[-.\de]+|)/g;
    path.setAttribute("d", column ? drawn.replace(points, moved) : drawn);
  }
  const made = (kept, text, x) => label(text, x, kept.getAttribute("y"), kept.getAttribute("class") ?? "");
  const axis = labels.at(-1);
  const inner = ticks(last, (right - left) / 75).filter((tick) => across(tick) > left + 50);
  plot.svg.querySelector(".x").replaceChildren(...(column ? [
    made(labels[0], "0", left),
    ...inner.filter((tick) => right - 50 > across(tick)).map((tick) => made(labels[0], short(tick), across(tick))),
    made(labels.at(-2), short(last), right), made(axis, name, axis.getAttribute("x")),
  ] : labels));
};
const remark = document.querySelector(".axis [role=status]");
for (const [column, choice] of document.querySelectorAll(".axis input").entries()) {
  choice.addEventListener("change", () => {
    hideAll();
    for (const drawing of drawings) redraw(drawing, column, choice.value);
    const names = runs.filter((run) => (column ? lacks(run, column) : false)).map(({ name }) => name);
    remark.textContent = names.length ? `${choice.value} not recorded: ${names.join(", ")}` : "";
  });
}
for (const part of document.querySelectorAll("[data-scripted]")) part.hidden = false;
// The switches, the focus and (by the browser) the place stay when the page is loaded again.
const switches = Array.from(document.querySelectorAll("input, [aria-pressed], details"));
const stops = Array.from(document.querySelectorAll("input, button, summary, [tabindex]"));
const isOn = (part) => part.checked ?? part.open ?? part.getAttribute("aria-pressed") === "true";
const keyOf = (part) => {
  const figure = part.closest("figure");
  if (!figure) return part.id || part.querySelector("summary").textContent;
  return `${figure.querySelector("h3").textContent} ${Array.from(figure.querySelectorAll("input, button")).indexOf(part)}`;
};
const keep = () => history.replaceState({
  on: Object.fromEntries(switches.map((part) => [keyOf(part), isOn(part)])),
  stop: stops.indexOf(document.activeElement),
}, "");
const { on = {}, stop = -1 } = history.state ?? {};
for (const part of switches) {
  const wanted = on[keyOf(part)] ?? isOn(part);
  if (part.open !== undefined) part.open = wanted;
  else if (wanted !== isOn(part)) part.click();
}
stops[stop]?.focus({ preventScroll: true });
addEventListener("click", () => setTimeout(keep));
