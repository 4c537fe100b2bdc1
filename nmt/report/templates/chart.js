
// Shows the values of charts at the pointer, or step by step with the arrow keys.
// Must not contain XML markup characters.
const element = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  return made;
};
const plots = Array.from(document.querySelectorAll("svg[data-axis]"), (svg) => {
  const [left, right, start, end] = svg.dataset.axis.split(" ").map(Number);
  const cross = element("g", {});
  let curves = null;
  const plot = {
    svg, figure: svg.closest("figure"), x: svg.dataset.x, left, right, start, end,
    slack: 0, // Points this near to the cross hair have its number.
    // The place of a step of a curve on the axis, which run.js replaces.
    place: (step) => step,
    // The number at a position of the pointer.
    at: (pixel) => {
      const box = svg.getBoundingClientRect();
      const x = ((pixel - box.left) / box.width) * svg.viewBox.baseVal.width;
      return start + ((plot.end - start) * (x - left)) / (right - left);
    },
    stops: () => near(start).flatMap((curve) => curve.points.map((point) => point.at)),
    reread: () => { curves = null; },
    hide: () => cross.remove(),
    // Draws the cross hair at the point nearest to a number, and returns the values there.
    show: (wanted) => {
      const found = near(wanted);
      if (found.length === 0) return null;
      const away = (each) => Math.abs(each.point.at - wanted);
      const { point } = found.reduce((one, other) => (away(one) > away(other) ? other : one));
      const bottom = svg.viewBox.baseVal.height - 40;
      cross.replaceChildren(element("path", { class: "cross", d: `M${point.x},10V${bottom}` }));
      for (const each of found) {
        const dot = element("g", { class: each.color });
        dot.append(element("path", { class: "dots", d: `M${each.point.x},${each.point.y}h0` }));
        cross.append(dot);
      }
      svg.append(cross);
      return { at: point.at, x: point.x, found };
    },
  };
  const read = (path) => {
    const group = path.parentNode;
    // Both vertical axes of a chart show the same points; only the first has their values.
    const listed = path.dataset.points ? path : plot.figure.querySelector(`[data-curve="${group.dataset.curve}"] [data-points]`);
    const texts = listed.dataset.points.split(";");
    const places = path.getAttribute("d").match(/[-.\de]+,[-.\de]+/g) ?? [];
    const points = places.map((place, index) => {
      const [step, value] = texts[index].split(" ");
      const [x, y] = place.split(",");
      return { at: plot.place(Number(step), group.dataset.curve), value, x, y };
    });
    return { name: path.dataset.name, color: group.getAttribute("class"), group, points };
  };
  const near = (wanted) => {
    if (!curves) curves = Array.from(svg.querySelectorAll("[data-name]"), read);
    const away = (point) => Math.abs(point.at - wanted);
    const nearest = (one, other) => (away(one) > away(other) ? other : one);
    const shown = curves.filter(({ group, points }) =>
      points.length ? getComputedStyle(group).display !== "none" : false);
    return shown.map((curve) => ({ ...curve, point: curve.points.reduce(nearest) }));
  };
  return plot;
});
const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("role", "status");
const hideAll = () => {
  for (const plot of plots) plot.hide();
  tip.remove();
};
const showAt = (plot, wanted) => {
  const shown = plot.show(wanted);
  if (!shown) return wanted;
  const { at, x, found } = shown;
  const named = (number) => `${plot.x} ${number.toLocaleString("en")}`;
  for (const other of plots) if (other !== plot) if (other.x === plot.x) other.show(at);
  const head = document.createElement("p");
  head.textContent = named(at);
  tip.replaceChildren(head);
  for (const { name, color, point } of found) {
    const row = document.createElement("p");
    const value = document.createElement("b");
    const swatch = document.createElement("i");
    swatch.className = `swatch ${color}`;
    const late = Math.abs(point.at - at) > plot.slack ? ` (${named(point.at)})` : "";
    value.textContent = point.value;
    row.append(swatch, name + late, value);
    tip.append(row);
  }
  plot.figure.append(tip);
  const [frame, box] = [plot.figure, plot.svg].map((each) => each.getBoundingClientRect());
  const place = box.left - frame.left + (x / plot.svg.viewBox.baseVal.width) * box.width;
  const fits = frame.width > place + 14 + tip.offsetWidth;
  tip.style.left = `${Math.max(0, fits ? place + 14 : place - 14 - tip.offsetWidth)}px`;
  tip.style.top = `${box.top - frame.top + 8}px`;
  return at;
};
for (const plot of plots) {
  const { svg } = plot;
  let now = plot.end;
  const point = (event) => { now = showAt(plot, plot.at(event.clientX)); };
  svg.tabIndex = 0;
  svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. Arrow keys show the values.`);
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hideAll(); });
  svg.addEventListener("blur", hideAll);
  svg.addEventListener("keydown", (event) => {
    const stops = [...new Set(plot.stops())].sort((one, other) => one - other);
    const index = stops.indexOf(now);
    const last = stops.length - 1;
    const to = {
      ArrowLeft: index > 0 ? index - 1 : 0, Home: 0, End: last,
      ArrowRight: index > -1 ? Math.min(index + 1, last) : last,
    }[event.key];
    if (event.key === "Escape") hideAll();
    if (to === undefined) return;
    event.preventDefault();
    now = showAt(plot, stops[to]);
  });
}
