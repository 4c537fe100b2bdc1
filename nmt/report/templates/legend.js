
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
