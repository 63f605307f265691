// Draws the figures in the colours of the page. A figure names its colours as CSS variables; they are looked up when it is
// drawn, and again when the reader's colour scheme changes or the page is printed.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = window.matchMedia("(max-width: 640px)");
  const settings = { displayModeBar: false, responsive: true, showTips: false };

  function coloured(value, styles) {
    if (typeof value === "string" && value.startsWith("var(--")) {
      return styles.getPropertyValue(value.slice(4, -1)).trim();
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, styles));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, styles)]));
    }
    return value;
  }

  // `more` laid over `layout`; objects are joined, everything else is replaced.
  function over(layout, more) {
    const whole = { ...layout };
    for (const [key, value] of Object.entries(more)) {
      const both = value && typeof value === "object" && !Array.isArray(value) && layout[key];
      whole[key] = both ? over(layout[key], value) : value;
    }
    return whole;
  }

  function draw() {
    const styles = getComputedStyle(document.documentElement);
    figures.forEach((figure, index) => {
      const place = document.getElementById("figure-" + index);
      const drawn = coloured(figure, styles);
      const data = drawn.data;
      const layout = place.dataset.other ? over(drawn.layout, drawn.other) : drawn.layout;
      // A finger that scrolls the page must not zoom a figure.
      if (narrow.matches) Object.assign(layout, { dragmode: false });
      Plotly.react(place, data, layout, settings);
    });
  }

  function print(on) {
    document.documentElement.toggleAttribute("data-print", on);
    draw();
  }

  document.querySelectorAll("button[data-figure]").forEach((button) => {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", pressed);
      document.getElementById(button.dataset.figure).dataset.other = pressed ? "yes" : "";
      draw();
    });
  });

  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
})();
