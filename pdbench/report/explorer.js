"use strict";
// Fills the scatter with the requests of the cell that is picked, and shows the stages of one request. Runs inside a
// function, once the figures are known and before they are drawn. Every text is set as text.
const cells = JSON.parse(document.getElementById("requests").textContent);
const chooser = document.getElementById("explorer-cell");
const picked = document.getElementById("picked");
const place = document.querySelector("#explorer-note").previousElementSibling.querySelector(".plot");
const index = Number(place.id.slice("figure-".length));
const data = pdbench.figures[index].data;
const slo = pdbench.figures[index].layout.shapes || [];
const STAGES = [
  ["sent", "waits in the client", "from when it was due to when it was sent", "--part-8"],
  ["connected", "connects", "until the connection is ready", "--part-0"],
  ["prefill_sent", "until hop 1 is sent", "two-hop drive", "--part-0"],
  ["prefill_done", "prefill leg", "hop 1, until prefill has answered", "--part-2"],
  ["decode_sent", "between the hops", "until hop 2 is sent", "--part-7"],
  ["first_byte", "until the answer's head", "from the send to the first byte of the answer", "--part-1"],
  ["first_token", "until the first token", "from the head to the first generated output", "--part-2"],
  ["second_token", "until the second token", "a long one means that the first token came from prefill", "--part-3"],
  ["last_token", "the other tokens", "until the last event with output", "--part-5"],
  ["done", "until the end", "from the last token to the end of the answer", "--part-4"],
];
let cell, order, ranked, at;

const value = (name, request) => (Array.isArray(cell[name]) ? cell[name][request] : cell[name]);
const known = (number) => number !== null && number !== undefined;
const ms = (number) =>
  !known(number) ? "not measured" : number.toLocaleString("en-US", { maximumSignificantDigits: 4 }) + " ms";

function element(name, text, attributes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, item] of Object.entries(attributes || {})) made.setAttribute(key, item);
  return made;
}

function fill() {
  cell = cells[chooser.value];
  order = cell.at.map((_, request) => request).sort((a, b) => cell.at[a] - cell.at[b]);
  const ttft = (request) => value("first_token", request);
  const answered = order.filter((request) => known(ttft(request)));
  const silent = order.filter((request) => !known(ttft(request)));
  ranked = [...silent, ...[...answered].sort((a, b) => ttft(a) - ttft(b))];
  const [median, longest, points, none] = data;
  const band = cell.band || { at: [], median: [], longest: [] };
  Object.assign(median, { x: band.at, y: band.median, showlegend: Boolean(cell.band) });
  Object.assign(longest, { x: band.at, y: band.longest, showlegend: Boolean(cell.band) });
  Object.assign(points, { x: answered.map((i) => cell.at[i]), y: answered.map(ttft), customdata: answered });
  const lowest = answered.length ? Math.min(...answered.map(ttft)) : 1;
  const text = silent.map((i) => `${value("status", i)}: no first token`);
  Object.assign(none, { x: silent.map((i) => cell.at[i]), y: silent.map(() => lowest), customdata: silent, text });
  none.showlegend = silent.length > 0;
  // An SLO far above all points would press them flat.
  const highest = Math.max(1, ...answered.map(ttft), ...band.longest);
  pdbench.figures[index].layout.shapes = slo.filter((line) => line.y0 <= 3 * highest);
  document.getElementById("explorer-note").textContent =
    (cell.all ? `${cell.of}.` : `${cell.at.length} of ${cell.of} are points: some that got no token, the slowest, an even sample.`) +
    (silent.length ? " A cross stands at the lower edge: it has no TTFT." : "");
  pick(ranked[ranked.length - 1], false);
}

function pick(request, redraw) {
  at = request;
  const y = known(value("first_token", request)) ? value("first_token", request) : data[3].y[data[3].customdata.indexOf(request)];
  Object.assign(data[4], { x: [cell.at[request]], y: [y] });
  if (redraw && place.dataset.drawn) pdbench.draw(index);
  show(request);
}

function stages(request) {
  let before = 0;
  const found = [];
  for (const [stamp, name, meaning, colour] of STAGES) {
    const until = value(stamp, request);
    // A connection may be ready before its request is due, and hop 1 leaves as the request does: then it is no stage.
    if (!known(until) || (["connected", "prefill_sent"].includes(stamp) && until <= before)) continue;
    found.push([name, until - before, meaning, colour]);
    before = until;
  }
  return found;
}

function show(request) {
  const found = stages(request);
  const total = found.reduce((sum, [, took]) => sum + Math.max(took, 0), 0) || 1;
  const bar = element("div", undefined, { class: "stages", "aria-hidden": "true" });
  const body = element("tbody");
  for (const [name, took, meaning, colour] of found) {
    const piece = element("span", undefined, { title: `${name}: ${ms(took)}` });
    piece.style.cssText = `flex-grow:${(Math.max(took, 0) / total).toFixed(5)};background:var(${colour})`;
    bar.append(piece);
    const row = element("tr");
    const head = element("th", undefined, { scope: "row" });
    const key = element("i");
    key.style.background = `var(${colour})`;
    head.append(key, name);
    row.append(head, element("td", ms(took), { class: "n" }), element("td", meaning));
    body.append(row);
  }
  const table = element("table");
  table.append(element("caption", "Its stages"), body);
  const facts = element("dl");
  const tokens = value("output_tokens", request);
  const [first, last] = [value("first_token", request), value("last_token", request)];
  const tpot = tokens > 1 && known(first) && known(last) ? (last - first) / (tokens - 1) : null;
  const gap = value("gap", request);
  for (const [name, text] of [
    ["status", value("status", request)],
    ["error", [value("error_kind", request), value("error", request)].filter(Boolean).join(": ")],
    ["TTFT", ms(first)],
    ["TPOT", ms(tpot)],
    ["E2EL", ms(last)],
    ["longest gap", known(gap) ? `${ms(gap)}, before event ${value("gap_before", request)}` : ""],
    ["tokens", `${value("prompt_tokens", request) ?? "?"} in, ${tokens ?? "?"} out`],
    ["from the cache", known(value("cached_tokens", request)) ? `${value("cached_tokens", request)} of them` : ""],
    ["class", value("class", request)],
    ["turn", known(value("turn", request)) ? `${value("turn", request)}` : ""],
    ["ended by", value("finish_reason", request)],
  ]) {
    if (text) facts.append(element("dt", name), element("dd", text));
  }
  const title = element("h3", `Request ${value("index", request)} `);
  title.append(element("code", cell.prefix + (cell.id ? cell.id[request] : value("index", request))));
  const repeat = value("repeat", request) ? `, repeat ${value("repeat", request) + 1}` : "";
  const where = element("p", `Due ${cell.at[request].toFixed(2)} s after the start of the cell${repeat}.`, { class: "note" });
  const columns = element("div", undefined, { class: "columns" });
  columns.append(table, facts);
  picked.replaceChildren(title, where, bar, columns);
}

function step(list, by) {
  const next = list.indexOf(at) + by;
  if (next >= 0 && next < list.length) pick(list[next], true);
}

function most(name) {
  const of = (request) => (known(value(name, request)) ? value(name, request) : -1);
  pick(order.reduce((best, request) => (of(request) > of(best) ? request : best), order[0]), true);
}

cells.forEach((item, number) => chooser.append(element("option", item.name, { value: number })));
chooser.addEventListener("change", () => {
  fill();
  pdbench.draw(index);
});
document.querySelectorAll("button[data-step]").forEach((button) => {
  button.addEventListener("click", () => {
    const how = button.dataset.step;
    if (how === "slowest") most("first_token");
    else if (how === "gap") most("gap");
    else step(order, Number(how));
  });
});
place.addEventListener("keydown", (event) => {
  const how = { ArrowLeft: [order, -1], ArrowRight: [order, 1], ArrowDown: [ranked, -1], ArrowUp: [ranked, 1] }[event.key];
  if (!how) return;
  event.preventDefault();
  step(...how);
});
place.addEventListener("drawn", () => {
  if (place.dataset.listens) return;
  place.dataset.listens = "yes";
  place.on("plotly_click", (event) => {
    const point = event.points.find((each) => each.customdata !== undefined);
    if (point) pick(point.customdata, true);
  });
});
fill();
