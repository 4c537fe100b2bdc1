
// Shows the values of charts at the pointer, or step by step with the arrow keys.
// Must not contain XML markup characters.
const element = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  return made;
};
const plots = Array.from(document.querySelectorAll("svg[data-axis]"), (svg) => {
  const [left, right, start, end] = svg.dataset.axis.split(" ").map(Number);
  const figure = svg.closest("figure");
  const cross = element("g", {});
  let curves = null;
  const read = (path) => {
    const places = path.getAttribute("d").match(/[-.\de]+,[-.\de]+/g);
    const points = path.dataset.points.split(";").map((text, index) => {
      const [step, value] = text.split(" ");
      const [x, y] = places[index].split(",");
      return { step: Number(step), value, x, y };
    });
    const group = path.parentNode;
    return { name: path.dataset.name, color: group.getAttribute("class"), group, points };
  };
  const near = (step) => {
    if (!curves) curves = Array.from(svg.querySelectorAll("[data-points]"), read);
    const away = (point) => Math.abs(point.step - step);
    const nearest = (one, other) => (away(one) > away(other) ? other : one);
    const shown = curves.filter((curve) => curve.group.style.display !== "none");
    return shown.map((curve) => ({ ...curve, point: curve.points.reduce(nearest) }));
  };
  return {
    svg, figure, x: svg.dataset.x, start, end,
    // The step at a position of the pointer.
    at: (pixel) => {
      const box = svg.getBoundingClientRect();
      const x = ((pixel - box.left) / box.width) * svg.viewBox.baseVal.width;
      return start + ((end - start) * (x - left)) / (right - left);
    },
    steps: () => near(start).flatMap((curve) => curve.points.map((point) => point.step)),
    hide: () => cross.remove(),
    // Draws the cross hair at the point nearest to a step, and returns the values there.
    show: (step) => {
      const found = near(step);
      if (found.length === 0) return null;
      const away = (each) => Math.abs(each.point.step - step);
      const { point } = found.reduce((one, other) => (away(one) > away(other) ? other : one));
      const bottom = svg.viewBox.baseVal.height - 40;
      cross.replaceChildren(element("path", { class: "cross", d: `M${point.x},10V${bottom}` }));
      for (const each of found) {
        const dot = element("g", { class: each.color });
        dot.append(element("path", { class: "dots", d: `M${each.point.x},${each.point.y}h0` }));
        cross.append(dot);
      }
      svg.append(cross);
      return { step: point.step, x: point.x, found };
    },
  };
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
  const { step, x, found } = shown;
  for (const other of plots) if (other !== plot) if (other.x === plot.x) other.show(step);
  const head = document.createElement("p");
  head.textContent = `${plot.x} ${step.toLocaleString("en")}`;
  tip.replaceChildren(head);
  for (const { name, color, point } of found) {
    const row = document.createElement("p");
    const value = document.createElement("b");
    const swatch = element("svg", { class: `swatch ${color}`, viewBox: "0 0 22 12" });
    swatch.append(element("path", { d: "M1,6H21" }));
    const late = point.step === step ? "" : ` (${plot.x} ${point.step.toLocaleString("en")})`;
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
  return step;
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
    const steps = [...new Set(plot.steps())].sort((one, other) => one - other);
    const index = steps.indexOf(now);
    const last = steps.length - 1;
    const to = {
      ArrowLeft: index > 0 ? index - 1 : 0, Home: 0, End: last,
      ArrowRight: index > -1 ? Math.min(index + 1, last) : last,
    }[event.key];
    if (event.key === "Escape") hideAll();
    if (to === undefined) return;
    event.preventDefault();
    now = showAt(plot, steps[to]);
  });
}
// An entry of the legend hides and shows its curve.
for (const key of document.querySelectorAll("figure .key")) {
  const entries = Array.from(key.children);
  if (entries.length > 1) entries.forEach((entry, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(...entry.childNodes);
    entry.append(button);
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(isOn));
      const groups = key.closest("figure").querySelectorAll(`[data-curve="${index}"]`);
      for (const group of groups) group.style.display = isOn ? "" : "none";
      hideAll();
    });
  });
}
