/* SPDX-License-Identifier: Apache-2.0 */
/* The page of a job: state, live curves, samples, log, files, and a chat. */
"use strict";
const Job = (function () {
  const make = Page.make, number = Page.number;
  const CURVES = [["Loss", /^(loss|eval_loss)$/], ["Gradient norm", /^grad_norm$/], ["Learning rate", /^lr$/],
    ["Tokens per second", /^tokens_per_second$/], ["Seconds of a step", /^(step|data_wait|comm|comm_hidden|save_stall)_seconds$/],
    ["Memory", /^(rss|pss)_bytes$/, Page.bytes]];
  const MOST_POINTS = 4000;
  let shown = null; /* the job on the page */

  /* ---- actions */

  function rankForm(parent, job, text) {
    const form = make(parent, "form"), label = make(form, "label", "ranks ");
    const input = make(label, "input", null, { type: "number", min: 1, max: 1024, value: job.ranks, required: "", id: "resume-ranks" });
    make(form, "button", text, { class: "main", "data-action": "queue" });
    form.addEventListener("submit", (e) => { e.preventDefault(); Jobs.ask(job, "queue", { ranks: +input.value }); });
  }
  async function clone(job) {
    const made = await Jobs.ask(job, "clone");
    if (made) location.hash = "#/edit/" + made.id;
  }
  async function remove(job) {
    if (confirm("Remove job " + job.id + " from the list? Its files in " + job.output_dir + " stay.") && await Server.act("DELETE", "/api/jobs/" + job.id, {}))
      location.hash = "#/jobs";
  }
  function drawActions(job) {
    const box = shown.actions, isRun = job.kind === "run", button = Jobs.button;
    box.textContent = "";
    if (Jobs.ACTIVE.includes(job.state)) {
      button(box, job.state === "stopping" ? "stop again" : isRun ? "stop and save" : "stop", "stop", () => Jobs.ask(job, "stop"));
      if (job.state === "stopping") button(box, "kill", "kill", () => Jobs.ask(job, "kill"));
      if (isRun && job.state === "running") {
        button(box, "save now", "save", () => Jobs.ask(job, "save"));
        button(box, "sample now", "sample", () => Jobs.ask(job, "sample"));
      }
    } else if (job.state === "queued") {
      button(box, "out of the queue", "unqueue", () => Jobs.ask(job, "unqueue"));
    } else if (isRun) {
      rankForm(box, job, job.state === "draft" ? "queue" : "resume");
      make(box, "a", "edit", { href: "#/edit/" + job.id });
    } else {
      button(box, "again", "queue", () => Jobs.ask(job, "queue", {}));
    }
    if (isRun) button(box, "clone", "clone", () => clone(job));
    if (isRun) button(box, "report", "report", () => Server.openReport(job.id));
    if (!Jobs.ACTIVE.includes(job.state)) button(box, "remove", "remove", () => remove(job));
  }
  function drawState(job, all) {
    shown.state.textContent = "";
    Jobs.chip(shown.state, job);
    make(shown.state, "span", " " + Jobs.word(job, all));
    if (shown.last !== job.state) drawActions(job);
    if (shown.last && shown.last !== job.state) drawFiles(job);
    shown.last = job.state;
    Tenants.take(job);
  }

  /* ---- curves */

  function curve(name) {
    if (!shown.curves.has(name)) {
      shown.curves.set(name, { steps: [], values: [], count: 0 });
      shown.redraws = true;
    }
    return shown.curves.get(name);
  }
  /* A repeated step replaces itself and all later ones: the run was resumed. */
  function add(name, step, value) {
    const c = curve(name);
    while (c.steps.length && c.steps[c.steps.length - 1] >= step) { c.steps.pop(); c.values.pop(); c.count--; }
    c.steps.push(step);
    c.values.push(value);
    c.count++;
  }
  function addLines(text) {
    const lines = (shown.rest + text).split("\n");
    shown.rest = lines.pop();
    lines.forEach((line) => {
      let o = null;
      try { o = JSON.parse(line); } catch (e) { return; } /* a torn line of a killed run */
      if (!o || typeof o.step !== "number") return;
      Object.keys(o).forEach((key) => { if (key !== "step" && (typeof o[key] === "number" || o[key] === null)) add(key, o.step, o[key]); });
      shown.step = o.step;
    });
  }
  function drawCharts() {
    if (shown.redraws) {
      shown.charts.textContent = "";
      Charts.clear();
      CURVES.forEach(([title, fits, show]) => {
        const lines = [...shown.curves].filter(([name, c]) => fits.test(name) && c.count).map(([name, c]) => ({ label: name, curve: c }));
        if (lines.length) Charts.add(shown.charts, title, lines, [], show);
      });
      shown.redraws = false;
    }
    Charts.redraw();
  }

  /* ---- samples, log, files */

  function drawSamples(run) {
    const box = shown.samples;
    box.textContent = "";
    run.samples.slice().reverse().forEach((s) => {
      const card = make(box, "div");
      make(card, "h3", "step " + s.step);
      make(card, "pre", s.text + (s.cut ? " …" : ""), { tabindex: 0 });
    });
    run.pictures.slice().sort((a, b) => b.step - a.step || a.prompt - b.prompt).forEach((p) => {
      const image = Page.picture(box, p, shown.config, "step " + p.step), path = "/api/jobs/" + shown.id + "/samples/" + p.file;
      Server.picture(path).then((source) => { image.src = source; }).catch(() => {});
    });
    if (!run.samples.length && !run.pictures.length) make(box, "p", "None yet. sample.prompts of the config says what is sampled.", { class: "note" });
  }
  function addLog(text) {
    const log = shown.log, atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
    log.textContent = (log.textContent + text).slice(-200000);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
  /* "step 200: eval loss 1.5, best": of the checkpoints that are kept. */
  function checkpointText(step, steps) {
    const c = shown.curves.get("eval_loss"), at = (s) => c ? c.values[c.steps.indexOf(s)] : undefined;
    const known = steps.map(at).filter((v) => typeof v === "number"), mine = at(step);
    if (typeof mine !== "number") return "step " + step + ":";
    return "step " + step + ", eval loss " + number(mine) + (mine === Math.min(...known) ? ", best" : "") + ":";
  }
  async function drawFiles(job) {
    const found = await Server.get("/api/jobs/" + job.id + "/files").catch(() => null), box = shown && shown.files;
    if (!found || !box || shown.id !== job.id) return;
    box.textContent = "";
    const steps = [...new Set(found.files.map((f) => /^checkpoints\/step-(\d+)\//.exec(f.name)).filter(Boolean).map((m) => +m[1]))];
    if (job.kind === "run" && steps.length && shown.lora) {
      steps.forEach((step) => {
        const line = make(box, "div", null, { class: "actions" });
        make(line, "span", checkpointText(step, steps));
        ["export-lora", "merge-lora"].forEach((verb) => Jobs.button(line, verb, verb, async () => {
          const made = await Jobs.ask(job, verb, { step: step });
          if (made) location.hash = "#/job/" + made.id;
        }));
      });
    }
    const list = make(box, "ul");
    found.files.forEach((f) => {
      const item = make(list, "li"), b = make(item, "button", f.name, { type: "button", "data-file": f.name });
      make(item, "small", " " + Page.bytes(f.bytes));
      b.addEventListener("click", () => Server.download(job.id, f.name));
    });
    if (!found.files.length) make(box, "p", "None yet.", { class: "note" });
  }

  /* ---- the page */

  function section(title, id) {
    make(Page.main, "h2", title);
    return make(Page.main, "section", null, { id: id });
  }
  function build(job) {
    Page.main.textContent = "";
    make(Page.main, "h1", job.name);
    make(Page.main, "p", "job " + job.id + " · " + job.output_dir, { class: "lead" });
    const state = make(Page.main, "p", null, { id: "job-state" }), actions = make(Page.main, "div", null, { class: "actions", id: "job-actions" });
    shown = { id: job.id, state: state, actions: actions, curves: new Map(), rest: "", redraws: true, step: 0, last: null,
      config: job.config, lora: !!(job.config && job.config.lora) };
    if (job.kind === "run" && job.config && job.config.tenants) Tenants.build(section("Tenants", "tenants"), job);
    if (job.kind === "run") {
      const curves = section("Curves", "curves");
      Charts.clear();
      Charts.controls(curves);
      shown.charts = make(curves, "div", null, { class: "charts" });
      shown.samples = make(section("Samples", "samples"), "div", null, { class: "samples" });
      Try.build(section("Try it", "try"), job);
    }
    shown.log = make(section("Log", "logs"), "pre", "", { id: "log", tabindex: 0 });
    shown.files = section("Files", "files");
    const config = section("Config", "config");
    make(config, "pre", JSON.stringify(job.config, null, 2), { tabindex: 0 });
  }
  async function refreshRun(id) {
    const run = await Server.get("/api/jobs/" + id + "/run");
    if (!shown || shown.id !== id) return 0;
    shown.curves.clear();
    shown.redraws = true;
    shown.rest = "";
    run.curves.forEach((c) => { if (!/\[/.test(c.name)) shown.curves.set(c.name, { steps: c.steps, values: c.values, count: c.count }); });
    shown.step = run.step;
    shown.nsamples = run.samples.length;
    drawSamples(run);
    drawCharts();
    return run.metrics_bytes;
  }
  async function refreshSamples(id) {
    const run = await Server.get("/api/jobs/" + id + "/run").catch(() => null);
    if (run && shown && shown.id === id) drawSamples(run);
  }
  function take(id, name, data) {
    if (!shown || shown.id !== id) return;
    if (name === "jobs") {
      const job = data.jobs.find((j) => j.id === id);
      if (job) drawState(job, data);
      if (job && job.kind === "run" && !Jobs.ACTIVE.includes(job.state)) refreshSamples(id);
    } else if (name === "metrics") {
      addLines(data.text);
      if ([...shown.curves.values()].some((c) => c.steps.length > MOST_POINTS)) show(id); /* thinned by the server */
      else drawCharts();
    } else if (name === "log") {
      addLog(data.text);
      if (/sample \d+:|pictures? drawn/.test(data.text)) refreshSamples(id);
    }
  }
  async function show(id) {
    const here = location.hash;
    let job = null;
    try {
      job = await Server.get("/api/jobs/" + id);
    } catch (e) {
      Server.say(e.message);
    }
    if (!job || location.hash !== here) return;
    build(job);
    drawState(job, { devices: [], jobs: [job] });
    const at = { job: id, metrics: job.kind === "run" ? await refreshRun(id).catch(() => 0) : 0, log: 0 };
    drawFiles(job);
    const log = await Server.get("/api/jobs/" + id + "/log").catch(() => null);
    if (!shown || shown.id !== id) return;
    if (log) { addLog(log.text); at.log = log.next; }
    Server.stream(at, (name, data) => take(id, name, data));
  }
  function leave() {
    Tenants.leave();
    shown = null;
  }
  return { show: show, leave: leave };
})();
