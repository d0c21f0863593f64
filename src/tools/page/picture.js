/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a checkpoint: ranks and their rows, bytes of ranks and files, what a plan moves, damage. Which rank
 * holds which rows follows from mesh and placements (src/ckpt/include/fsdpck/tensor.h), and is computed here only for
 * the tensors that are looked at. */
"use strict";
const Picture = (function () {
  const REPLICATE = 0, SHARD = 1;

  /* ---- the rule */

  /* Part c of n of intervals [begin, end) that are taken one after another. */
  function chunk(list, c, n, extent) {
    const each = Math.ceil(extent / n), from = Math.min(c * each, extent), to = Math.min(from + each, extent), out = [];
    let at = 0;
    list.forEach(([b, e]) => {
      const lo = Math.max(from - at, 0), hi = Math.min(to - at, e - b);
      if (lo < hi) out.push([b + lo, b + hi]);
      at += e - b;
    });
    return out;
  }
  const sum = (list) => list.reduce((n, [b, e]) => n + e - b, 0);
  function coordinate(mesh, index) {
    const at = [];
    for (let d = mesh.dims.length - 1; d >= 0; d--) {
      at[d] = index % mesh.dims[d].size;
      index = Math.floor(index / mesh.dims[d].size);
    }
    return at;
  }
  const nranks = (mesh) => mesh.dims.reduce((n, d) => n * d.size, 1);
  /* For each dimension of the tensor the intervals that the place `index` of the mesh holds; null: it holds nothing. */
  function parts(shape, mesh, on, only, index) {
    const at = coordinate(mesh, index), lists = shape.map((n) => [[0, n]]);
    if (only && at[only[0]] !== only[1]) return null;
    on.forEach(([kind, dim, split], m) => {
      if (kind === REPLICATE) return;
      const all = lists[dim], extent = sum(all), n = mesh.dims[m].size;
      if (kind === SHARD) lists[dim] = chunk(all, at[m], n, extent);
      else {
        lists[dim] = [];
        for (let s = 0; s < split; s++) {
          const piece = chunk(all, s, split, extent);
          lists[dim].push(...chunk(piece, at[m], n, sum(piece)));
        }
      }
    });
    return lists.every((list) => sum(list) > 0) ? lists : null;
  }
  return { parts: parts, nranks: nranks, coordinate: coordinate, sum: sum };
})();

(function () {
  const make = Page.make, shape = Page.shape, number = Page.number, bytes = Page.bytes, data = Page.data;
  const groups = data.groups ? data.groups.list : [], damage = data.damage || [];
  const LANES = 64, WIDTH = 900, LABEL = 92;
  const word = ([kind, dim, split]) => kind === 0 ? "replicate" : kind === 1 ? "shard(" + dim + ")" : "strided_shard(" + dim + "," + split + ")";
  const words = (mesh, on) => mesh.dims.map((d, i) => word(on[i]) + " on " + d.name + "=" + d.size).join(", ");
  const pattern = (name) => name.replace(/[0-9]+/g, "#");

  function addOverview() {
    const plan = data.plan, files = data.files;
    Page.begin(data.source, plan ? "as " + plan.mesh.map((d) => d.name + "=" + d.size).join(" × ") + " would read it" : data.damage ? "as verify found it" : "what it holds, and where");
    const list = [];
    if (data.damage) list.push(["problems", number(data.damage_count), data.damage_count ? "see Damage" : "none were found"]);
    if (data.groups) {
      list.push(["kind", data.source_kind], ["tensors", number(data.tensors)], ["bytes of tensors", bytes(data.bytes)]);
      list.push(["files", number(files.count)]);
      if (data.source_ranks) list.push(["written by", number(data.source_ranks) + (data.source_ranks === 1 ? " rank" : " ranks")]);
    }
    if (plan) list.push(["ranks of the plan", number(plan.ranks.length)]);
    Page.tiles(Page.main, list);
    if (!data.groups) make(Page.main, "p", "The checkpoint could not be opened: its damage is all there is to show.", { class: "bad" });
  }
  function addDamage() {
    if (!data.damage) return;
    const section = Page.section("Damage");
    if (!data.damage_count) { make(section, "p", "No problem was found."); return; }
    Page.table(section, ["file", "rank", "tensor", "rows", "bytes at", "what"], damage.map((d) => [d.file || data.source,
      d.rank < 0 ? null : String(d.rank), d.tensor, d.rows[1] > d.rows[0] ? d.rows[0] + " … " + (d.rows[1] - 1) : null,
      d.bytes ? d.offset + " + " + d.bytes : null, d.what]));
    if (data.damage_count > damage.length) make(section, "p", number(data.damage_count - damage.length) + " more are not listed; `fsdpck verify` prints them all.", { class: "note" });
  }

  /* ---- bytes of ranks and files */

  /* Bars where there are few, columns with least, median and greatest where there are many. */
  function distribution(section, title, values) {
    make(section, "h3", title);
    if (values.length <= 32) {
      Page.bars(section, values.map((v, i) => ["rank " + i, v, bytes(v)]));
      return;
    }
    const height = 120, most = Math.max(...values, 1), svg = shape(section, "svg", { viewBox: "0 0 " + WIDTH + " " + (height + 18), role: "img", "aria-label": title });
    const columns = Math.min(values.length, 450), each = values.length / columns;
    for (let k = 0; k < columns; k++) {
      const group = values.slice(Math.floor(k * each), Math.max(Math.floor((k + 1) * each), Math.floor(k * each) + 1)), v = Math.max(...group), h = height * v / most;
      const bar = shape(svg, "rect", { x: WIDTH * k / columns, y: height - h, width: Math.max(WIDTH / columns - 0.4, 0.6), height: h, fill: "var(--c0)" });
      shape(bar, "title", {}, "ranks from " + Math.floor(k * each) + ": at most " + bytes(v));
    }
    shape(svg, "text", { x: 0, y: height + 14 }, "rank 0");
    shape(svg, "text", { x: WIDTH, y: height + 14, "text-anchor": "end" }, "rank " + (values.length - 1));
    const sorted = [...values].sort((a, b) => a - b);
    make(section, "p", "least " + bytes(sorted[0]) + ", median " + bytes(sorted[sorted.length >> 1]) + ", greatest " + bytes(sorted[sorted.length - 1]), { class: "note" });
  }
  function addBytes() {
    if (!data.groups) return;
    const section = Page.section("Bytes of ranks and files");
    if (data.plan) {
      distribution(section, "needed by each rank of the plan", data.plan.ranks.map((r) => r[0]));
      distribution(section, "read by each rank of the plan", data.plan.ranks.map((r) => r[1]));
      distribution(section, "memory of each rank: its parts and buffers", data.plan.ranks.map((r) => r[0] + r[4]));
    }
    if (data.stored) distribution(section, "in the files of each rank that wrote it", data.stored);
    make(section, "h3", data.files.count > data.files.list.length ? "files: the largest" : "files");
    const bad = new Set(damage.map((d) => d.file));
    Page.bars(section, data.files.list.slice(0, 48).map((f) => [(bad.has(f.name) ? "✗ " : "") + f.name, f.bytes, bytes(f.bytes) + (bad.has(f.name) ? ", damaged" : ""), bad.has(f.name)]));
    const more = data.files.list.slice(48), rest = more.reduce((n, f) => n + f.bytes, data.files.rest_bytes);
    if (data.files.count > 48) make(section, "p", "and " + number(data.files.count - 48) + " more with " + bytes(rest), { class: "note" });
  }

  /* ---- what moves */

  function addMoves() {
    const m = data.moves;
    if (!data.plan) return;
    const section = Page.section("What a resharding moves");
    if (!m) {
      make(section, "p", data.source_ranks ? "Not shown: tensors are not laid out by a rule, or there are too many parts to compare." : "No ranks wrote the source: every rank reads its own part of the files.");
      return;
    }
    const all = m.stays + m.moves || 1;
    Page.bars(section, [["goes to a rank of the same number", m.stays, bytes(m.stays) + " · " + (100 * m.stays / all).toFixed(1) + " %"],
      ["goes to another rank", m.moves, bytes(m.moves) + " · " + (100 * m.moves / all).toFixed(1) + " %"]]);
    const rows = Math.ceil(m.from / m.from_each), columns = Math.ceil(m.to / m.to_each), size = Math.max(6, Math.min(26, 620 / Math.max(rows, columns)));
    const most = Math.max(...m.cells, 1), svg = shape(section, "svg", { viewBox: "0 0 " + (LABEL + columns * size + 4) + " " + (rows * size + 26), role: "img",
      "aria-label": "bytes from each rank of the source (rows) to each rank of the plan (columns)", style: "max-width:" + (LABEL + columns * size + 4) + "px" });
    for (let a = 0; a < rows; a++) {
      if (a % Math.ceil(rows / 32) === 0) shape(svg, "text", { x: LABEL - 6, y: a * size + size / 2 + 4, "text-anchor": "end" }, "from " + (a * m.from_each));
      for (let b = 0; b < columns; b++) {
        const v = m.cells[a * columns + b], side = (size - 1) * Math.sqrt(v / most);
        shape(svg, "rect", { x: LABEL + b * size, y: a * size, width: size - 1, height: size - 1, fill: "var(--wash)" });
        if (!v) continue;
        const cell = shape(svg, "rect", { x: LABEL + b * size + (size - 1 - side) / 2, y: a * size + (size - 1 - side) / 2, width: side, height: side, fill: "var(--c0)" });
        shape(cell, "title", {}, "from " + a * m.from_each + " to " + b * m.to_each + ": " + bytes(v));
      }
    }
    for (let b = 0; b < columns; b += Math.ceil(columns / 12))
      shape(svg, "text", { x: LABEL + b * size + size / 2, y: rows * size + 16, "text-anchor": "middle" }, "to " + b * m.to_each);
    make(section, "p", "The area of a square is its share of bytes" + (m.from_each > 1 || m.to_each > 1 ? "; a square stands for " + m.from_each + " × " + m.to_each + " ranks" : "") +
      ". A part that several ranks hold comes from the one that wrote it.", { class: "note" });
  }

  /* ---- which rank holds which rows */

  const damageOf = (g) => damage.filter((d) => d.tensor && d.rows[1] > d.rows[0] && pattern(d.tensor) === g.pattern);

  /* A lane a rank, along one dimension of the tensor. */
  function lanes(parent, g, mesh, on, only, dim, first, stored) {
    const total = Picture.nranks(mesh), n = Math.min(LANES, total - first), extent = g.shape[dim], step = n > 24 ? 9 : 15;
    const dims = on.map((p, m) => [p, m]).filter(([p]) => p[0] && p[1] === dim).map(([, m]) => m), replicated = on.some((p) => p[0] === 0);
    const svg = shape(parent, "svg", { viewBox: "0 0 " + WIDTH + " " + (n * step + 22), role: "img", "aria-label": "parts of dimension " + dim + " that ranks hold" });
    const x = (v) => LABEL + v / extent * (WIDTH - LABEL - 2);
    const hurt = dim === 0 ? damageOf(g) : [];
    for (let k = 0; k < n; k++) {
      const index = first + k, rank = mesh.ranks ? mesh.ranks[index] : index, at = Picture.coordinate(mesh, index), lists = Picture.parts(g.shape, mesh, on, only, index);
      if (step > 10 || k % 4 === 0) shape(svg, "text", { x: LABEL - 6, y: k * step + step - 3, "text-anchor": "end" }, "rank " + rank);
      shape(svg, "rect", { x: LABEL, y: k * step, width: WIDTH - LABEL - 2, height: step - 2, fill: "var(--wash)" });
      (lists ? lists[dim] : []).slice(0, 512).forEach(([b, e]) => {
        const colour = dims.length ? at[dims[dims.length - 1]] % 6 : 0;
        const bar = shape(svg, "rect", { x: x(b), y: k * step, width: Math.max(x(e) - x(b), 0.7), height: step - 2, fill: "var(--c" + colour + ")" });
        shape(bar, "title", {}, "rank " + rank + " (" + mesh.dims.map((d, m) => d.name + " " + at[m]).join(", ") + "): " + b + " … " + (e - 1) + " of " + extent);
      });
    }
    const laneOf = (rank) => (mesh.ranks ? mesh.ranks.indexOf(rank) : rank) - first;
    hurt.forEach((d) => {
      const lane = laneOf(d.rank), own = stored && d.rank >= 0;
      if (own && (lane < 0 || lane >= n)) return;
      const mark = shape(svg, "rect", { x: x(d.rows[0]), y: own ? lane * step : 0, width: Math.max(x(d.rows[1]) - x(d.rows[0]), 2), height: own ? step - 2 : n * step, fill: "none", stroke: "var(--bad)", "stroke-width": 2.5 });
      shape(mark, "title", {}, d.tensor + ": " + d.what);
    });
    shape(svg, "text", { x: LABEL, y: n * step + 14 }, "0");
    shape(svg, "text", { x: WIDTH - 2, y: n * step + 14, "text-anchor": "end" }, number(extent));
    shape(svg, "text", { x: (WIDTH + LABEL) / 2, y: n * step + 14, "text-anchor": "middle" }, "dimension " + dim + (dim === 0 ? " (rows)" : ""));
    if (replicated) make(parent, "p", "Ranks with the same part hold copies of it: " + mesh.dims.filter((_, m) => on[m][0] === 0).map((d) => d.name).join(", ") + " replicates.", { class: "note" });
  }
  function side(parent, title, g, mesh, on, only, stored) {
    const total = Picture.nranks(mesh), dims = [...new Set(on.filter((p) => p[0]).map((p) => p[1]))];
    make(parent, "h3", title + ": " + words(mesh, on) + (only ? ", only where " + mesh.dims[only[0]].name + " is " + only[1] : ""));
    if (!g.shape.length) { make(parent, "p", only ? "A scalar." : "A scalar: every rank holds it."); return; }
    let first = 0;
    const box = make(parent, "div");
    const draw = () => {
      box.textContent = "";
      (dims.length ? dims : [0]).forEach((dim) => lanes(box, g, mesh, on, only, dim, first, stored));
    };
    if (total > LANES) {
      const label = make(parent, "label", "ranks from "), input = make(label, "input", null, { type: "number", min: 0, max: total - 1, step: LANES, value: 0 });
      label.appendChild(document.createTextNode(" of " + number(total)));
      input.addEventListener("input", () => { first = Math.max(0, Math.min(total - 1, Math.floor(+input.value || 0))); draw(); });
      parent.insertBefore(label, box);
    }
    draw();
  }
  function show(box, g) {
    box.textContent = "";
    const figure = make(box, "figure");
    make(make(figure, "figcaption"), "strong", g.count > 1 ? g.pattern + ", " + number(g.count) + " tensors as " + g.first : g.first);
    make(figure, "p", g.dtype + " [" + g.shape.join(", ") + "], " + bytes(g.bytes) + (g.count > 1 ? " each" : ""), { class: "note" });
    const hurt = damageOf(g);
    if (hurt.length) make(figure, "p", "✗ Damaged rows, framed: " + hurt.slice(0, 8).map((d) => d.tensor + " " + d.rows[0] + " … " + (d.rows[1] - 1)).join("; ") + (hurt.length > 8 ? "; …" : ""), { class: "bad" });
    if (g.on) side(figure, "stored", g, data.groups.meshes[g.mesh], g.on, null, true);
    else make(figure, "p", "The source says no rule by which its ranks hold it.", { class: "note" });
    if (g.to) side(figure, "in the plan", g, { dims: data.plan.mesh, ranks: null }, g.to, g.only, false);
  }
  function addTensors() {
    if (!data.groups) return;
    const section = Page.section("Which rank holds which rows"), box = make(section, "div"), controls = make(section, "div", null, { class: "controls" });
    const filter = make(make(controls, "label", "tensors with "), "input", null, { type: "search", id: "filter" });
    const note = make(controls, "span", ""), place = make(section, "div");
    const list = () => {
      const wanted = filter.value.toLowerCase(), found = groups.filter((g) => (g.pattern + " " + g.first).toLowerCase().includes(wanted)), shown = found.slice(0, 400);
      place.textContent = "";
      note.textContent = number(found.length) + " kinds of tensors" + (found.length > shown.length ? ", the first " + shown.length + " listed" : "");
      const t = Page.table(place, ["name", "tensors", "dtype", "shape", "bytes together", "stored", ...(data.plan ? ["in the plan"] : [])],
        shown.map((g) => [g.pattern, number(g.count), g.dtype, "[" + g.shape.join(", ") + "]", bytes(g.bytes * g.count),
          g.on ? g.on.map(word).join(", ") : null, ...(data.plan ? [g.to.map(word).join(", ")] : [])]));
      [...t.tBodies[0].rows].forEach((row, i) => {
        const button = make(row.cells[0], "button", (damageOf(shown[i]).length ? "✗ " : "") + row.cells[0].textContent, { type: "button" });
        row.cells[0].firstChild.remove();
        button.addEventListener("click", () => { show(box, shown[i]); box.scrollIntoView(); });
      });
    };
    filter.addEventListener("input", list);
    list();
    if (data.groups.left) make(section, "p", number(data.groups.left) + " tensors with " + bytes(data.groups.left_bytes) + " more are not listed: `fsdpck ls --tensor GLOB --html FILE` lists those that match.", { class: "note" });
    const first = groups.find((g) => damageOf(g).length) || groups.reduce((a, g) => !a || g.bytes * g.count > a.bytes * a.count ? g : a, null);
    if (first) show(box, first);
  }

  addOverview();
  addDamage();
  addTensors();
  addMoves();
  addBytes();
})();
