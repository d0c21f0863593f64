/* SPDX-License-Identifier: Apache-2.0 */
/* What the pages share: elements, numbers, tables, bars. All text goes in as text nodes, so that none can be markup. */
"use strict";
const Page = (function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("page"), nav = document.createElement("nav");

  function fill(e, text, attributes, parent) {
    if (text !== undefined && text !== null) e.textContent = text;
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    parent.appendChild(e);
    return e;
  }
  function make(parent, name, text, attributes) {
    return fill(document.createElement(name), text, attributes, parent);
  }
  function shape(parent, name, attributes, text) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", name), text, attributes, parent);
  }
  /* A picture that a run drew, under its prompt. drawn.png: base64; without it, the caller sets src. */
  function picture(parent, drawn, config, title) {
    const prompts = config && config.sample && config.sample.prompts || [], prompt = prompts[drawn.prompt - 1];
    const text = typeof prompt === "string" ? prompt : prompt && prompt.prompt || "prompt " + drawn.prompt;
    const figure = make(parent, "figure"), caption = make(figure, "figcaption");
    make(caption, "span", text);
    make(caption, "span", title, { class: "note" });
    return make(figure, "img", null, drawn.png ? { alt: text, src: "data:image/png;base64," + drawn.png } : { alt: text });
  }
  function number(x) {
    if (x === null || x === undefined) return "not finite";
    if (Number.isInteger(x) && Math.abs(x) < 1e7) return x.toLocaleString("en-US");
    return x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e7) ? x.toExponential(3).replace(/\.?0+e/, "e") : String(+x.toPrecision(5));
  }
  function bytes(n) {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let k = 0;
    for (; Math.abs(n) >= 1000 && k < 5; k++) n /= 1000;
    return (k ? +n.toPrecision(4) : n) + " " + units[k];
  }
  function duration(s) {
    if (s < 60) return +s.toPrecision(3) + " s";
    const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
    return h ? h + " h " + m + " min" : m + " min " + Math.floor(s % 60) + " s";
  }
  function time(unix) {
    const date = new Date(unix * 1000);
    return isNaN(date) ? "unknown time" : date.toISOString().replace("T", " ").slice(0, 19) + " UTC";
  }

  function begin(title, lead) {
    main.textContent = "";
    make(main, "h1", title);
    if (lead) make(main, "p", lead, { class: "lead" });
    main.appendChild(nav);
  }
  let count = 0;
  function section(title) {
    const id = "s" + ++count;
    make(nav, "a", title, { href: "#" + id });
    return make(make(main, "section"), "h2", title, { id: id }).parentNode;
  }
  function tiles(parent, list) {
    const box = make(parent, "div", null, { class: "tiles" });
    list.forEach(([what, value, more]) => {
      const tile = make(box, "div", null, { class: "tile" });
      make(tile, "span", what);
      make(tile, "strong", value);
      if (more) make(tile, "small", more);
    });
  }
  /* A cell is a text, or null: unknown. A row may have the property `name`, its class. */
  function table(parent, head, rows) {
    const box = make(parent, "div", null, { class: rows.length > 40 ? "wide clip" : "wide", tabindex: 0 });
    const t = make(box, "table"), first = make(make(t, "thead"), "tr"), body = make(t, "tbody");
    const isNumber = head.map((_, i) => i > 0 && rows.length > 0 && rows.every((r) => !r[i] || /^-?\d[\d.,e+-]*( [kMGTP]?B| %| s)?$/.test(r[i])));
    head.forEach((text, i) => make(first, "th", text, isNumber[i] ? { scope: "col", class: "number" } : { scope: "col" }));
    rows.forEach((row) => {
      const line = make(body, "tr", null, row.name ? { class: row.name } : {});
      row.forEach((cell, i) => i === 0 ? make(line, "th", cell, { scope: "row" })
        : make(line, "td", cell === null || cell === undefined ? "–" : cell, isNumber[i] ? { class: "number" } : {}));
    });
    return t;
  }
  /* Rows of [text, value, shown, hatched]; lengths are shares of the greatest. */
  function bars(parent, rows) {
    const box = make(parent, "div", null, { class: "bars", role: "list" });
    const most = Math.max(...rows.map((r) => r[1]), 1e-300);
    rows.forEach((r) => {
      make(box, "span", r[0], { role: "listitem" });
      const track = make(box, "div", null, { class: "track", "aria-hidden": "true" });
      const bar = make(track, "div", null, { class: "fill " + (r[3] ? "hatched" : "solid") });
      bar.style.width = Math.max(0, 100 * r[1] / most).toFixed(2) + "%";
      make(box, "span", r[2], { class: "value" });
    });
  }
  return { data: data, main: main, make: make, shape: shape, picture: picture, number: number, bytes: bytes, duration: duration,
    time: time, begin: begin, section: section, tiles: tiles, table: table, bars: bars };
})();
