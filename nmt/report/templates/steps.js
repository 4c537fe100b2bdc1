
// Shows one step at a time, with buttons and arrow keys. Must not contain XML markup characters.
for (const steps of document.querySelectorAll(".steps")) {
  const all = Array.from(steps.querySelectorAll(":scope > .step"));
  const bar = document.createElement("p");
  const place = document.createElement("output");
  const buttons = ["Back", "Next"].map((name) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    return button;
  });
  let now = 0;
  const show = (to) => {
    now = Math.max(0, Math.min(all.length - 1, to));
    all.forEach((step, index) => step.classList.toggle("now", index === now));
    place.textContent = `${now + 1} of ${all.length}`;
    buttons[0].disabled = now === 0;
    buttons[1].disabled = now === all.length - 1;
  };
  const move = { ArrowLeft: -1, ArrowRight: 1 };
  buttons[0].addEventListener("click", () => show(now - 1));
  buttons[1].addEventListener("click", () => show(now + 1));
  steps.addEventListener("keydown", (event) => {
    if (!(event.key in move) || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target !== steps ? event.target.tagName !== "BUTTON" : false) return;
    event.preventDefault();
    show(now + move[event.key]);
  });
  bar.className = "bar";
  bar.append(buttons[0], place, buttons[1]);
  steps.prepend(bar);
  steps.classList.add("live");
  show(0);
}
