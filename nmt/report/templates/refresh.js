
// Loads the page again while a run is training, unless the reader is using it.
// Must not contain XML markup characters.
const refresh = document.querySelector("#refresh");
const written = new Date(document.lastModified).toLocaleTimeString();
document.querySelector("#written").textContent = `Last written at ${written}.`;
let lastUse = 0;
for (const kind of ["pointermove", "keydown", "scroll"]) {
  addEventListener(kind, () => { lastUse = Date.now(); });
}
setInterval(() => {
  if (refresh.checked) if (Date.now() > lastUse + 3000) {
    keep();
    location.reload();
  }
}, 10000);
