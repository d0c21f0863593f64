/* SPDX-License-Identifier: Apache-2.0 */
/* Line charts in SVG that share the steps in view: values under the pointer, zoom, smoothing, log scales. A line is
 * { label, curve: { steps, values, count } }; values are null where a number was not finite. */
"use strict";
const Charts = (function () {
  const make = Page.make, shape = Page.shape, number = Page.number;
  const DASHES = ["", "7 3", "2 3", "10 3 2 3", "5 2 1 2 1 2", "12 5"];
  const WIDTH = 560, HEIGHT = 250, LEFT = 62, RIGHT = 22, TOP = 10, BOTTOM = 22, MOST_SHOWN = 16, MOST_KEYS = 24;
  const view = { from: null, to: null, smooth: 0 };
  const charts = [];

  /* Exponential mean of what is drawn; a gap stays a gap. */
  function smoothed(values) {
    let mean = null;
    return values.map((v) => v === null ? null : (mean = mean === null ? v : view.smooth * mean + (1 - view.smooth) * v));
  }
  function inView(line) {
    const points = [];
    const values = view.smooth ? smoothed(line.curve.values) : line.curve.values;
    line.curve.steps.forEach((step, i) => {
      if ((view.from === null || step >= view.from) && (view.to === null || step <= view.to))
        points.push({ step: step, raw: line.curve.values[i], value: values[i] });
    });
    return points;
  }
  function nice(low, high) {
    const rough = (high - low) / 6, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const each = [1, 2, 5, 10].find((m) => m * power >= rough) * power, ticks = [];
    for (let k = Math.ceil(low / each); k * each <= high && ticks.length < 20; k++) ticks.push(k * each);
    return ticks;
  }
  function path(points, x, y, key, log) {
    let d = "", down = false;
    points.forEach((p) => {
      const v = p[key];
      if (v === null || (log && v <= 0)) { down = false; return; }
      const at = x(p.step).toFixed(1) + " " + y(v).toFixed(1);
      d += down ? "L" + at : "M" + at + "h.1"; /* a point between two gaps is seen too */
      down = true;
    });
    return d;
  }
  function draw(chart) {
    const svg = chart.svg;
    while (svg.firstChild) svg.removeChild(svg.firstChild);
    const log = chart.log.checked, all = chart.lines.map(inView);
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    all.forEach((points) => points.forEach((p) => {
      x0 = Math.min(x0, p.step); x1 = Math.max(x1, p.step);
      [p.raw, p.value].forEach((v) => {
        if (v !== null && (!log || v > 0)) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
      });
    }));
    chart.points = all;
    if (y0 > y1) {
      shape(svg, "text", { x: LEFT, y: HEIGHT / 2 }, "no value in view");
      chart.x = null;
      return;
    }
    if (x0 === x1) x1 = x0 + 1;
    if (y0 === y1) { const more = Math.abs(y0) * 0.05 || 1; if (!log) y0 -= more; y1 += more; }
    const scale = log ? Math.log10 : (v) => v, room = (scale(y1) - scale(y0)) * 0.04;
    const a = y0 === 0 && !log ? 0 : scale(y0) - room, b = scale(y1) + room;
    const x = (step) => LEFT + (step - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    const y = (v) => TOP + (b - scale(v)) / (b - a) * (HEIGHT - TOP - BOTTOM);
    nice(a, b).forEach((t) => {
      const at = TOP + (b - t) / (b - a) * (HEIGHT - TOP - BOTTOM);
      shape(svg, "line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at });
      shape(svg, "text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, chart.show(log ? Math.pow(10, t) : +t.toPrecision(12)));
    });
    shape(svg, "line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM });
    chart.marks.filter((m) => m.step >= x0 && m.step <= x1).forEach((m) => {
      const line = shape(svg, "line", { class: "mark", x1: x(m.step), x2: x(m.step), y1: TOP, y2: HEIGHT - BOTTOM });
      shape(line, "title", {}, m.text);
    });
    nice(x0, x1).filter(Number.isInteger).forEach((t) =>
      shape(svg, "text", { x: x(t), y: HEIGHT - 6, "text-anchor": "middle" }, number(t)));
    chart.lines.forEach((line, i) => {
      const look = { stroke: line.colour, "stroke-dasharray": line.dash };
      if (view.smooth)
        shape(svg, "path", Object.assign({ class: "curve raw", d: path(all[i], x, y, "raw", log) }, look));
      shape(svg, "path", Object.assign({ class: "curve", d: path(all[i], x, y, "value", log) }, look));
    });
    chart.cursor = shape(svg, "line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    chart.chosen = shape(svg, "rect", { class: "chosen", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 0 });
    chart.x = x;
    chart.x0 = x0;
    chart.x1 = x1;
  }
  function redraw() { charts.forEach(draw); }
  function stepAt(chart, event) {
    const box = chart.svg.getBoundingClientRect(), px = (event.clientX - box.left) * WIDTH / box.width;
    const part = (px - LEFT) / (WIDTH - LEFT - RIGHT);
    return chart.x0 + Math.min(1, Math.max(0, part)) * (chart.x1 - chart.x0);
  }
  /* Shows the values that are nearest to a step. */
  function show(chart, step) {
    if (!chart.x) return;
    let nearest = null;
    const words = chart.lines.map((line, i) => {
      let best = null;
      chart.points[i].forEach((p) => {
        if (best === null || Math.abs(p.step - step) < Math.abs(best.step - step)) best = p;
      });
      if (best && (nearest === null || Math.abs(best.step - step) < Math.abs(nearest - step))) nearest = best.step;
      return best ? line.label + ": " + (best.raw === null ? "not finite" : best.raw) + " at step " + best.step : "";
    });
    chart.at = nearest;
    if (nearest === null) return;
    chart.cursor.setAttribute("x1", chart.x(nearest));
    chart.cursor.setAttribute("x2", chart.x(nearest));
    chart.cursor.setAttribute("visibility", "visible");
    chart.readout.textContent = words.filter(Boolean).slice(0, MOST_SHOWN).join("; ");
  }
  function move(chart, by) {
    const steps = [...new Set(chart.points.flatMap((p) => p.map((q) => q.step)))].sort((p, q) => p - q);
    const now = chart.at === null ? -1 : steps.indexOf(chart.at);
    if (steps.length) show(chart, steps[Math.min(steps.length - 1, Math.max(0, now + by))]);
  }
  function zoom(from, to) {
    view.from = from;
    view.to = to;
    document.getElementById("from").value = from === null ? "" : from;
    document.getElementById("to").value = to === null ? "" : to;
    redraw();
  }
  function listen(chart) {
    const svg = chart.svg;
    let start = null;
    svg.addEventListener("pointerdown", (e) => { if (chart.x) { start = stepAt(chart, e); svg.setPointerCapture(e.pointerId); } });
    svg.addEventListener("pointermove", (e) => {
      if (!chart.x) return;
      const step = stepAt(chart, e);
      show(chart, step);
      if (start === null) return;
      const a = chart.x(Math.min(start, step)), b = chart.x(Math.max(start, step));
      chart.chosen.setAttribute("x", a);
      chart.chosen.setAttribute("width", b - a);
    });
    svg.addEventListener("pointerup", (e) => {
      const end = start === null || !chart.x ? null : stepAt(chart, e), from = start;
      start = null;
      if (end === null) return;
      if (Math.abs(chart.x(end) - chart.x(from)) > 6) zoom(Math.ceil(Math.min(from, end)), Math.floor(Math.max(from, end)));
      else chart.chosen.setAttribute("width", 0);
    });
    svg.addEventListener("pointercancel", () => { start = null; });
    svg.addEventListener("dblclick", () => zoom(null, null));
    svg.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[e.key];
      if (by) { e.preventDefault(); move(chart, by); }
      if (e.key === "Escape") zoom(null, null);
    });
    chart.log.addEventListener("change", () => draw(chart));
  }
  function addChart(parent, title, lines, marks, show) {
    const figure = make(parent, "figure"), caption = make(figure, "figcaption");
    make(caption, "strong", title);
    const label = make(caption, "label"), log = make(label, "input", null, { type: "checkbox" });
    label.appendChild(document.createTextNode(" log scale"));
    const svg = shape(figure, "svg", { class: "plot", viewBox: "0 0 " + WIDTH + " " + HEIGHT, tabindex: 0, role: "img",
      "aria-label": title + ". Arrow keys show values, Escape shows all steps." });
    const readout = make(figure, "div", "", { class: "readout", role: "status" });
    const legend = make(figure, "ul", null, { class: "legend" });
    lines.forEach((line, i) => {
      if (i === MOST_KEYS) make(legend, "li", "and " + (lines.length - i) + " more");
      line.colour = "var(--c" + i % 6 + ")";
      line.dash = DASHES[Math.floor(i / 6 + i) % 6];
      if (i >= MOST_KEYS) return;
      const item = make(legend, "li"), key = shape(item, "svg", { viewBox: "0 0 48 10", "aria-hidden": "true" });
      shape(key, "path", { class: "curve", d: "M0 5H48", stroke: line.colour, "stroke-dasharray": line.dash });
      make(item, "span", line.label);
    });
    if (lines.some((line) => line.curve.count > line.curve.steps.length))
      make(figure, "small", "Thinned: of each stretch the least and the greatest value are drawn.");
    const chart = { svg: svg, lines: lines, log: log, readout: readout, marks: marks || [], show: show || number,
      points: [], x: null, at: null };
    charts.push(chart);
    listen(chart);
  }
  function addControls(parent) {
    const box = make(parent, "div", null, { class: "controls" });
    const field = (text, attributes) => {
      const label = make(box, "label", text + " ");
      return make(label, "input", null, attributes);
    };
    const limit = (name) => {
      const input = field(name + " step", { type: "number", min: 1, id: name });
      input.addEventListener("change", () => {
        view[name] = input.value === "" ? null : +input.value;
        redraw();
      });
    };
    limit("from");
    limit("to");
    field("smoothing", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 }).addEventListener("input", (e) => {
      view.smooth = +e.target.value;
      redraw();
    });
    make(box, "button", "show all steps", { type: "button" }).addEventListener("click", () => zoom(null, null));
    make(box, "span", "Drag over a chart to zoom.");
  }


  function clear() { charts.length = 0; }

  return { clear: clear, add: addChart, controls: addControls, redraw: redraw };
})();
