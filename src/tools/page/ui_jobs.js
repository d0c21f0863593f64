/* SPDX-License-Identifier: Apache-2.0 */
/* The list of jobs: running, waiting and ended; and the devices. */
"use strict";
const Jobs = (function () {
  const make = Page.make, number = Page.number;
  const ACTIVE = ["starting", "running", "stopping"], view = { known: null, older: [], found: [] };

  function chip(parent, job) { return make(parent, "span", job.state, { class: "chip " + job.state }); }
  /* Adds a button that is disabled while its action runs. */
  function button(parent, text, name, run) {
    const b = make(parent, "button", text, { type: "button", "data-action": name });
    b.addEventListener("click", async () => { b.disabled = true; await run(); b.disabled = false; });
    return b;
  }
  const ask = (job, what, body) => Server.act("POST", "/api/jobs/" + job.id + "/" + what, body);

  /* Why a job waits: devices in use, or earlier jobs that wait for them. */
  function waitsFor(job, all) {
    const lacks = job.devices.filter((name) => all.devices.length && !all.devices.some((d) => d.name === name));
    if (lacks.length) return "this server has no " + lacks.join(", ");
    const held = all.devices.filter((d) => d.job && job.devices.includes(d.name)).map((d) => d.name + ": job " + d.job + " has it");
    if (held.length) return held.join("; ");
    const before = all.jobs.filter((j) => j.state === "queued" && j.position < job.position && j.devices.some((d) => job.devices.includes(d)));
    return before.length ? "behind job " + before.map((j) => j.id).join(", ") : "";
  }
  function word(job, all) {
    const p = job.progress;
    if (job.state === "queued") return waitsFor(job, all);
    if (!ACTIVE.includes(job.state)) return job.reason;
    if (!p || !p.step) return job.kind === "run" ? "before the first step" : "";
    return "step " + number(p.step) + (p.steps ? " of " + number(p.steps) : "") + ", loss " + number(p.loss) +
      (p.tokens_per_second ? ", " + number(Math.round(p.tokens_per_second)) + " tokens/s" : "") +
      (p.steps && p.step_seconds ? ", " + Page.duration(Math.max(0, p.steps - p.step) * p.step_seconds) + " left" : "");
  }
  function actions(parent, job) {
    const box = make(parent, "div", null, { class: "actions" });
    if (job.state === "queued") {
      button(box, "up", "up", () => ask(job, "move", { by: -1 }));
      button(box, "down", "down", () => ask(job, "move", { by: 1 }));
      button(box, "out of the queue", "unqueue", () => ask(job, "unqueue"));
    } else if (ACTIVE.includes(job.state)) {
      button(box, job.state === "stopping" ? "stop again" : "stop and save", "stop", () => ask(job, "stop"));
      if (job.state === "stopping") button(box, "kill", "kill", () => ask(job, "kill"));
    } else {
      button(box, job.state === "draft" ? "queue" : job.kind === "run" ? "resume" : "again", "queue", () => ask(job, "queue"));
    }
  }
  function row(body, job, all) {
    const tr = make(body, "tr", null, { "data-job": job.id });
    make(tr, "th", job.id, { scope: "row" });
    const name = make(tr, "td");
    make(name, "a", job.name, { href: "#/job/" + job.id });
    chip(make(tr, "td"), job);
    const said = make(tr, "td", word(job, all));
    if (job.progress && job.progress.steps) {
      const meter = make(said, "div", null, { class: "meter", "aria-hidden": "true" });
      make(meter, "div").style.width = Math.min(100, 100 * job.progress.step / job.progress.steps) + "%";
    }
    make(tr, "td", job.kind === "run" ? job.ranks + " on " + job.devices.join(", ") : job.kind);
    actions(make(tr, "td"), job);
  }
  function table(parent, title, jobs, all) {
    if (!jobs.length) return;
    make(parent, "h2", title);
    const t = make(make(parent, "div", null, { class: "wide" }), "table"), head = make(make(t, "thead"), "tr");
    ["job", "name", "state", "", "ranks", ""].forEach((text) => make(head, "th", text, { scope: "col" }));
    const body = make(t, "tbody");
    jobs.forEach((job) => row(body, job, all));
  }
  async function showOlder() {
    const list = view.known.jobs.concat(view.older), least = Math.min(...list.filter((j) => j.state !== "queued" && !ACTIVE.includes(j.state)).map((j) => j.id));
    const more = await Server.act("GET", "/api/jobs?before=" + least);
    if (!more) return;
    view.older = view.older.concat(more.jobs);
    view.known.more = more.more;
    draw();
  }
  /* A selector of the focused element. The list is redrawn with each change, and the focus must survive it. */
  function focused() {
    const e = document.activeElement, tr = e && e.closest && e.closest("tr[data-job]");
    return tr ? "tr[data-job='" + tr.dataset.job + "'] " + (e.dataset.action ? "[data-action='" + e.dataset.action + "']" : "a") : null;
  }
  function draw() {
    const all = view.known, main = Page.main, focus = focused();
    main.textContent = "";
    make(main, "h1", "Jobs");
    const list = make(main, "ul", null, { class: "legend", id: "devices" });
    all.devices.forEach((d) => make(list, "li", d.name + ": " + (d.job ? "job " + d.job : "free")));
    if (!all.jobs.length) make(main, "p", "Nothing yet. A new run begins with a model and a file of conversations.", { class: "note" });
    table(main, "Running", all.jobs.filter((j) => ACTIVE.includes(j.state)), all);
    table(main, "Waiting", all.jobs.filter((j) => j.state === "queued").sort((a, b) => a.position - b.position), all);
    const known = new Set(all.jobs.map((j) => j.id));
    table(main, "Others", all.jobs.filter((j) => j.state !== "queued" && !ACTIVE.includes(j.state)).concat(view.older.filter((j) => !known.has(j.id))), all);
    listFound(main);
    if (all.more) button(make(main, "p"), "older jobs", "older", showOlder);
    const at = focus && main.querySelector(focus);
    if (at) at.focus();
  }
  /* Loads the runs that were started from a terminal. */
  async function drawFound() {
    const here = location.hash, told = await Server.get("/api/found").catch(() => ({ runs: [] }));
    if (location.hash !== here) return;
    view.found = told.runs;
    if (view.known) draw();
  }
  function listFound(parent) {
    if (!view.found.length) return;
    make(parent, "h2", "Runs in the folder that are no jobs");
    view.found.forEach((run) => {
      const line = make(parent, "div", null, { class: "actions" });
      make(line, "span", run.name + " (" + run.state + ")");
      button(line, "make it a job", "found", async () => {
        const made = await Server.act("POST", "/api/found", { name: run.name });
        if (made) location.hash = "#/job/" + made.id;
      });
    });
  }
  function take(name, data) {
    if (name !== "jobs") return;
    const more = view.known && view.older.length ? view.known.more : data.more;
    view.known = data;
    view.known.more = more;
    draw();
  }
  function show() {
    view.older = [];
    view.found = [];
    drawFound();
    Page.main.textContent = "";
    make(Page.main, "h1", "Jobs");
    Server.stream({}, take);
  }
  return { show: show, chip: chip, button: button, ask: ask, word: word, ACTIVE: ACTIVE };
})();
