/* SPDX-License-Identifier: Apache-2.0 */
/* A run as a form, made from the table of keys that the trainer reads, or as JSON; the planner's verdict beside it. */
"use strict";
const Form = (function () {
  const make = Page.make, number = Page.number;
  /* Keys that most runs set; they come first. */
  const COMMON = ["model", "output_dir", "data.train", "data.eval", "data.seq_len", "lora.r", "lora.lora_alpha", "lora.target_modules",
    "train.max_steps", "train.learning_rate", "train.micro_batch_size", "train.gradient_accumulation_steps", "sample.prompts", "sample.every"];
  let form = null; /* what is on the page */

  /* ---- a config as a tree */

  function read(tree, key) {
    return key.split(".").reduce((o, part) => o && typeof o === "object" ? o[part] : undefined, tree);
  }
  function write(tree, key, value) {
    const parts = key.split("."), last = parts.pop();
    let o = tree;
    for (const part of parts) {
      if (!o[part] || typeof o[part] !== "object") {
        if (value === undefined) return;
        o[part] = {};
      }
      o = o[part];
    }
    if (value === undefined) delete o[last]; else o[last] = value;
    /* Remove empty sections, except "lora", which asks for an adapter. */
    if (value === undefined && parts.length === 1 && parts[0] !== "lora" && !Object.keys(o).length) delete tree[parts[0]];
  }
  /* Parses a field as JSON, or as text if the key takes text or it is not JSON. An empty field leaves the key unset. */
  function typed(text, key) {
    if (text === "") return undefined;
    if (/^string/.test(key.values) && !/list|object/.test(key.values)) return text === "null" && key.nullable ? null : text;
    try { return JSON.parse(text); } catch (e) { return text; }
  }
  function shown(value) {
    return value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  }

  /* ---- fields */

  function addKey(parent, key) {
    const line = make(parent, "div", null, { class: "field" }), id = "key-" + key.name;
    make(line, "label", key.name, { for: id });
    let input;
    if (key.choices) {
      input = make(line, "select", null, { id: id });
      make(input, "option", key.default ? "default: " + key.default.replace(/"/g, "") : "not set", { value: "" });
      key.choices.split("|").forEach((word) => make(input, "option", word, { value: word }));
    } else if (/list|object/.test(key.values)) {
      input = make(line, "textarea", null, { id: id, rows: 1, placeholder: key.default });
    } else {
      input = make(line, "input", null, { id: id, placeholder: key.default.replace(/^"|"$/g, ""), autocomplete: "off" });
    }
    if (key.required) input.setAttribute("required", "");
    make(line, "small", key.doc + (key.choices ? "" : " (" + key.values + ")"));
    input.addEventListener("input", () => {
      write(form.config, key.name, typed(input.value, key));
      if (key.name === "output_dir") form.ownFolder = true;
      changed(input);
    });
    form.fields.push([key, input]);
  }
  function fillFields(except) {
    form.fields.forEach(([key, input]) => { if (input !== except) input.value = shown(read(form.config, key.name)); });
    form.kind.value = form.config.lora ? "lora" : "full";
    if (form.text !== except) form.text.value = JSON.stringify(form.config, null, 2);
  }
  function addFields(parent, sections) {
    const keys = new Map(sections.flatMap((s) => s.keys.map((k) => [k.name, k])));
    const first = make(parent, "fieldset");
    make(first, "legend", "What most runs set");
    const line = make(first, "div", null, { class: "field" });
    make(line, "label", "what is trained", { for: "kind" });
    form.kind = make(line, "select", null, { id: "kind" });
    make(form.kind, "option", "an adapter (LoRA)", { value: "lora" });
    make(form.kind, "option", "all weights", { value: "full" });
    form.kind.addEventListener("change", () => {
      if (form.kind.value === "lora") form.config.lora = form.config.lora || {}; else delete form.config.lora;
      changed(null);
    });
    COMMON.filter((name) => keys.has(name)).forEach((name) => addKey(first, keys.get(name)));
    sections.forEach((s) => {
      const others = s.keys.filter((k) => !COMMON.includes(k.name));
      if (!others.length) return;
      const box = make(parent, "details");
      make(box, "summary", s.name || "others at the top level");
      make(box, "p", s.doc, { class: "note" });
      others.forEach((k) => addKey(box, k));
    });
  }
  function addText(parent) {
    const box = make(parent, "details", null, { id: "as-json" });
    make(box, "summary", "The config as JSON");
    form.text = make(box, "textarea", null, { rows: 20, "aria-label": "config as JSON", spellcheck: "false", id: "json" });
    form.text.addEventListener("input", () => {
      try {
        const tree = JSON.parse(form.text.value);
        if (!tree || typeof tree !== "object" || Array.isArray(tree)) throw new Error("an object is wanted");
        form.config = tree;
        form.wrong = "";
      } catch (e) { form.wrong = "This is no JSON: " + e.message; }
      changed(form.text);
    });
  }

  /* ---- devices, ranks */

  function chosen() { return form.devices.filter(([, box]) => box.checked).map(([name]) => name); }
  function addPlace(parent, all, job) {
    const box = make(parent, "fieldset");
    make(box, "legend", "Where it runs");
    const name = make(box, "div", null, { class: "field" });
    make(name, "label", "name", { for: "name" });
    form.name = make(name, "input", null, { id: "name", required: "", maxlength: 200, autocomplete: "off" });
    form.name.addEventListener("input", () => {
      if (!form.ownFolder) form.config.output_dir = all.dir + "/" + (form.name.value.toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[-.]+|-+$/g, "") || "run");
      changed(form.name);
    });
    const line = make(box, "div", null, { class: "field" });
    make(line, "span", "devices");
    const list = make(line, "div", null, { class: "actions", role: "group", "aria-label": "devices" });
    form.devices = all.devices.map((d) => {
      const label = make(list, "label"), input = make(label, "input", null, { type: "checkbox", "data-device": d.name });
      label.appendChild(document.createTextNode(" " + d.name + (d.job ? " (job " + d.job + ")" : "")));
      input.addEventListener("change", () => {
        const gpus = chosen().filter((n) => n.startsWith("cuda:")).length;
        if (gpus) form.ranks.value = gpus;
        changed(input);
      });
      return [d.name, input];
    });
    if (all.devices.some((d) => d.name.startsWith("cuda:")))
      Jobs.button(list, "all GPUs", "all-gpus", () => {
        form.devices.forEach(([n, input]) => { input.checked = n.startsWith("cuda:"); });
        form.ranks.value = chosen().length;
        changed(null);
      });
    const ranks = make(box, "div", null, { class: "field" });
    make(ranks, "label", "ranks", { for: "ranks" });
    form.ranks = make(ranks, "input", null, { id: "ranks", type: "number", min: 1, max: 1024, required: "" });
    make(ranks, "small", "Processes that share the model. The result has the same bits for any number.");
    form.ranks.addEventListener("input", () => changed(form.ranks));
    const gpu = all.devices.filter((d) => d.name.startsWith("cuda:")).slice(0, 1), usual = gpu.length ? gpu : all.devices.slice(0, 1);
    const wanted = job ? job.devices : usual.map((d) => d.name);
    form.devices.forEach(([n, input]) => { input.checked = wanted.includes(n); });
    form.ranks.value = job ? job.ranks : 1;
    form.name.value = job ? job.name : "";
  }

  /* ---- the planner's verdict */

  function drawPlan(plan) {
    const rows = [["memory of a rank", Page.bytes(plan.peak_bytes)], ["memory, all ranks", Page.bytes(plan.all_ranks_bytes)]];
    if (plan.free_bytes) rows.push(["free memory", Page.bytes(plan.free_bytes)]);
    rows.push(["parameters trained", number(plan.parameters_trained)], ["frozen", number(plan.parameters_frozen)]);
    rows.push(["steps", number(plan.steps)], ["tokens of a step", number(Math.round(plan.tokens_per_step))]);
    if (plan.step_seconds) rows.push(["seconds of a step", number(plan.step_seconds)], ["the whole run", Page.duration(plan.steps * plan.step_seconds)]);
    if (plan.documents) rows.push(["documents", number(plan.documents)], ["longest, tokens", number(plan.longest_document_tokens)]);
    const fits = !plan.free_bytes || plan.all_ranks_bytes <= plan.free_bytes;
    make(form.verdict, "p", fits ? plan.free_bytes ? "It fits." : "Planned." : "It does not fit: all ranks need more than is free.", fits ? {} : { class: "bad" });
    Page.table(form.verdict, ["", ""], rows);
  }
  function say(text, bad) {
    form.verdict.textContent = "";
    if (text) make(form.verdict, "p", text, bad ? { class: "bad" } : { class: "note" });
  }
  const body = () => ({ config: form.config, ranks: +form.ranks.value, devices: chosen(), name: form.name.value });
  async function plan() {
    const mine = form, turn = ++mine.turn;
    if (mine.wrong) { say(mine.wrong, true); return; }
    if (!mine.config.model || !read(mine.config, "data.train")) { say("A model and data.train are wanted."); return; }
    say("Planning …");
    const found = await Server.post("/api/plan", body()).catch((e) => ({ refused: e.message }));
    if (form !== mine || mine.turn !== turn) return;
    say(found.refused || "", true);
    if (!found.refused) drawPlan(found);
  }
  function changed(by) {
    if (!form.wrong || by !== form.text) fillFields(by);
    clearTimeout(form.clock);
    form.clock = setTimeout(plan, 400);
  }

  /* ---- the page */

  async function keep(queues) {
    if (form.wrong) { Server.say(form.wrong); return; }
    const id = form.id, made = id ? await Server.act("PUT", "/api/jobs/" + id, body()) : await Server.act("POST", "/api/jobs", Object.assign(body(), { queue: queues }));
    if (!made) return;
    if (id && queues && !await Server.act("POST", "/api/jobs/" + id + "/queue", {})) return;
    location.hash = "#/job/" + (id || made.id);
  }
  async function show(id) {
    const here = location.hash;
    let all, keys, job = null;
    try {
      all = await Server.get("/api/jobs");
      keys = await Server.get("/api/keys");
      if (id) job = await Server.get("/api/jobs/" + id);
    } catch (e) {
      Server.say(e.message);
      return;
    }
    if (location.hash !== here) return;
    Page.main.textContent = "";
    make(Page.main, "h1", id ? "Edit job " + id : "New run");
    const two = make(Page.main, "form", null, { class: "two", id: "run-form" }), left = make(two, "div"), aside = make(two, "aside", null, { class: "verdict" });
    make(aside, "h2", "The planner says");
    form = { id: id, config: job ? job.config : { model: "", output_dir: all.dir + "/run", data: { train: "" }, lora: {}, train: {} },
      fields: [], wrong: "", turn: 0, clock: null, ownFolder: !!job, verdict: make(aside, "div", null, { id: "verdict", role: "status" }) };
    addPlace(left, all, job);
    addFields(left, keys.sections);
    addText(left);
    const box = make(left, "div", null, { class: "actions" });
    make(box, "button", "save and queue", { class: "main", id: "queue-it" });
    Jobs.button(box, "save as a draft", "draft", () => keep(false));
    two.addEventListener("submit", (e) => { e.preventDefault(); keep(true); });
    fillFields(null);
    plan();
  }
  return { show: show };
})();
