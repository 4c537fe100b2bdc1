
// Makes regions that scroll sideways reachable by keyboard. Must not contain XML markup characters.
const markRegions = () => {
  for (const region of document.querySelectorAll(".scroll, pre")) {
    if (region.scrollWidth > region.clientWidth + 1) {
      let part = region;
      while (!part.querySelector("h1, h2, h3, h4, .title, summary")) part = part.parentElement;
      region.tabIndex = 0;
      region.setAttribute("role", "group");
      region.setAttribute("aria-label", part.querySelector("h1, h2, h3, h4, .title, summary").textContent.trim());
    } else for (const name of ["tabindex", "role", "aria-label"]) region.removeAttribute(name);
  }
};
addEventListener("resize", markRegions);
document.addEventListener("toggle", markRegions, true);
markRegions();
