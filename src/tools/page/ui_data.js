/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a data set as the model sees them: tokens, lengths, loss mask, and truncation; or pictures in their buckets. */
"use strict";
const Data = (function () {
  const make = Page.make, number = Page.number, COUNT = 10, PICTURES = 200;
  let view = null;

  /* Byte-level tokenizers write spaces and newlines as visible letters. */
  function readable(token) {
    return token === null ? "" : token.replace(/[Ġ▁]/g, " ").replace(/Ċ/g, "\n");
  }
  function drawRow(parent, row, at, length) {
    const box = make(parent, "section"), n = row.ids.length, on = (row.mask || []).slice(0, length).filter(Boolean).length;
    make(box, "h3", "row " + at + ": " + number(n) + " tokens, " + number(on) + " with a loss" + (n > length ? ", " + number(n - length) + " cut" : ""));
    const text = make(box, "p", null, { class: "tokens", tabindex: 0 });
    row.tokens.forEach((token, i) => {
      const kinds = [row.mask && row.mask[i] ? "on" : "", i >= length ? "cut" : ""].filter(Boolean).join(" ");
      make(text, "span", readable(token), kinds ? { class: kinds } : {});
    });
  }
  function drawPictures(out, found, from) {
    const size = (width, height) => width + " × " + height, some = found.pictures.slice(from - 1, from - 1 + PICTURES);
    make(out, "h3", number(found.pictures.length) + " pictures in " + number(found.buckets.length) + " buckets");
    Page.table(out, ["bucket", "pictures"], found.buckets.map((b) => [size(b.width, b.height), number(b.pictures)]));
    Page.table(out, ["picture", "size", "bucket", "caption", "tokens"], some.map((p) =>
      [p.path.split("/").pop(), size(p.width, p.height), size(p.bucket_width, p.bucket_height), p.caption,
        number(p.tokens) + (p.cut ? ", cut" : "")]));
  }
  function drawRows(out, found, v) {
    make(out, "p", "Underlined in green and shaded: the loss counts these tokens. Struck through: cut at the row's length.", { class: "note" });
    found.examples.forEach((row, i) => drawRow(out, row, v.from + i, +v.length.value || Infinity));
    if (!found.examples.length) make(out, "p", "There are no more rows.", { class: "note" });
  }
  async function draw() {
    const v = view, out = v.rows;
    if (!v.model.value || !v.file.value) return;
    const body = { model: v.model.value, file: v.file.value, from: v.from, count: COUNT, loss_on: v.loss.value, resolution: +v.side.value };
    const found = await Server.act("POST", "/api/rows", body);
    if (view !== v || !found) return;
    out.textContent = "";
    const step = found.pictures ? PICTURES : COUNT;
    const more = found.pictures ? v.from - 1 + step < found.pictures.length : found.examples.length === COUNT;
    if (found.pictures) drawPictures(out, found, v.from);
    else drawRows(out, found, v);
    const box = make(out, "div", null, { class: "actions" });
    if (v.from > 1) Jobs.button(box, "earlier rows", "earlier", () => { v.from = Math.max(1, v.from - step); return draw(); });
    if (more) Jobs.button(box, "later rows", "later", () => { v.from += step; return draw(); });
  }
  async function send(input) {
    const file = input.files[0];
    if (!file) return;
    Server.say("");
    try {
      const made = await Server.call("POST", "/api/data?name=" + encodeURIComponent(file.name), file, "application/jsonl");
      view.file.value = made.file;
      view.uploaded.textContent = made.file + ": " + number(made.lines) + " lines";
      await listFiles();
    } catch (e) { Server.say(e.message); }
  }
  async function listFiles() {
    const found = await Server.get("/api/data").catch(() => ({ files: [] })), list = document.getElementById("files-here");
    if (!list) return;
    list.textContent = "";
    found.files.forEach((f) => make(list, "option", null, { value: f.file }));
  }
  function show() {
    const main = Page.main;
    main.textContent = "";
    make(main, "h1", "Data");
    const up = make(main, "fieldset");
    make(up, "legend", "Upload JSONL");
    const input = make(make(up, "label", "file "), "input", null, { type: "file", accept: ".jsonl,.json", id: "upload" });
    const uploaded = make(up, "p", "", { class: "note", id: "uploaded", role: "status" });
    input.addEventListener("change", () => send(input));
    const form = make(main, "form", null, { id: "rows-form" });
    const field = (text, attributes) => {
      const line = make(form, "div", null, { class: "field" });
      make(line, "label", text, { for: attributes.id });
      return make(line, attributes.options ? "select" : "input", null, attributes.options ? { id: attributes.id } : attributes);
    };
    const model = field("model", { id: "rows-model", required: "", autocomplete: "off" });
    const file = field("file, or folder of pictures", { id: "rows-file", required: "", list: "files-here", autocomplete: "off" });
    make(form, "datalist", null, { id: "files-here" });
    const loss = field("loss on", { id: "rows-loss", options: true });
    ["assistant", "last_assistant", "completion", "all"].forEach((word) => make(loss, "option", word, { value: word }));
    const length = field("length of a row (data.seq_len)", { id: "rows-length", type: "number", min: 1, value: 2048 });
    const side = field("side of pictures (image.resolution)", { id: "rows-side", type: "number", min: 16, value: 512 });
    make(make(form, "div", null, { class: "actions" }), "button", "show rows", { class: "main" });
    view = { model: model, file: file, loss: loss, length: length, side: side, from: 1, uploaded: uploaded, rows: make(main, "div", null, { id: "rows" }) };
    form.addEventListener("submit", (e) => { e.preventDefault(); view.from = 1; draw(); });
    listFiles();
    Server.stream({}, () => {});
  }
  return { show: show };
})();
