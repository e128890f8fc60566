// Light or dark: as the system says, or as the reader has chosen. Runs before the page is painted, so it is no module.
(() => {
  const KEY = "isotherm-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  let choice = "automatic";
  try {
    choice = localStorage.getItem(KEY) ?? choice;
  } catch {
    // The browser keeps nothing for this site: the choice holds for this page.
  }

  function paint() {
    document.documentElement.dataset.theme = choice === "automatic" ? (system.matches ? "dark" : "light") : choice;
    // To the canvases themselves: a listener of the document would outlive its canvas.
    for (const canvas of document.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("themechange"));
  }

  system.addEventListener("change", paint);
  paint();
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = choice;
    select.addEventListener("change", () => {
      choice = select.value;
      paint();
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // As above.
      }
    });
  });
})();
