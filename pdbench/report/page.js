// Draws the figures in the colours of the page. A figure names its colours as CSS variables; they are looked up when it is
// drawn, and again when the reader's colour scheme changes or the page is printed. What is on the screen is drawn first, the
// rest one figure at a time, so that a long page can be read at once. The library that draws is unpacked first.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = window.matchMedia("(max-width: 640px)");
  const settings = { displayModeBar: false, responsive: true, showTips: false };
  const PRINTED_WIDTH = 690; // px of an A4 page between its margins
  let turn = 0;

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

  function placeOf(index) {
    return document.getElementById("figure-" + index);
  }

  function draw(index) {
    const place = placeOf(index);
    const figure = figures[index];
    const choice = figure.choices[place.dataset.choice] || { layout: {} };
    const chosen = { data: choice.data || figure.data, layout: over(figure.layout, choice.layout) };
    const drawn = coloured({ ...chosen, other: figure.other }, getComputedStyle(document.documentElement));
    const layout = place.dataset.other ? over(drawn.layout, drawn.other) : drawn.layout;
    // A finger that scrolls the page must not zoom a figure.
    if (narrow.matches) Object.assign(layout, { dragmode: false }, wordsBelowNames(drawn.data));
    place.style.height = (layout.height || figure.layout.height || place.clientHeight) + "px";
    if (document.documentElement.hasAttribute("data-print")) {
      layout.width = Math.min(place.clientWidth, PRINTED_WIDTH);
    }
    Plotly.react(place, drawn.data, layout, settings);
    place.dataset.drawn = "yes";
    place.dispatchEvent(new Event("drawn"));
  }

  // What is written behind bars would be cut off on a narrow screen: it goes below their names. Returns the new layout.
  function wordsBelowNames(data) {
    const bars = data.filter((trace) => trace.textposition === "outside" && trace.orientation === "h");
    for (const trace of bars) {
      trace.y = trace.y.map((name, row) => name + "<br>" + trace.text[row]);
      Object.assign(trace, { textposition: "none", hovertemplate: "%{y}<extra></extra>" });
    }
    return bars.length ? { height: 80 + 38 * bars[0].y.length } : {};
  }

  function drawAll() {
    turn += 1;
    figures.forEach((_, index) => draw(index));
  }

  function drawInTurn() {
    const mine = (turn += 1);
    const waiting = figures.map((_, index) => index);
    const seen = waiting.filter((index) => placeOf(index).getBoundingClientRect().top < window.innerHeight);
    seen.forEach(draw);
    const rest = waiting.filter((index) => !seen.includes(index));
    (function next() {
      if (mine !== turn || !rest.length) return;
      draw(rest.shift());
      setTimeout(next);
    })();
  }

  function print(on) {
    document.documentElement.toggleAttribute("data-print", on);
    drawAll();
  }

  async function unpack(library) {
    const packed = Uint8Array.from(atob(library.textContent), (letter) => letter.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
  }

  function apologise() {
    document.querySelectorAll(".plot").forEach((place) => {
      place.textContent = "This browser is too old to unpack the figures; the tables have their numbers.";
    });
  }

  function start() {
    document.querySelectorAll("button[data-figure]").forEach(onButton);
    document.querySelectorAll("select[data-figure]").forEach(onSelect);
    // Other scripts of the page fill figures before they are drawn.
    window.pdbench = { figures, draw };
    window.dispatchEvent(new Event("figures"));
    drawInTurn();
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawInTurn);
    narrow.addEventListener("change", drawInTurn);
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
  }

  function onButton(button) {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", pressed);
      const place = document.getElementById(button.dataset.figure);
      place.dataset.other = pressed ? "yes" : "";
      draw(place.id.slice("figure-".length));
    });
  }

  function onSelect(select) {
    const choose = () => {
      const place = document.getElementById(select.dataset.figure);
      place.dataset.choice = select.value;
      draw(place.id.slice("figure-".length));
    };
    select.addEventListener("change", choose);
    // A browser that goes back keeps what was picked.
    document.getElementById(select.dataset.figure).dataset.choice = select.value;
  }

  const library = document.getElementById("library");
  if (library) unpack(library).then(start, apologise);
})();
