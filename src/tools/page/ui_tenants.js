/* SPDX-License-Identifier: Apache-2.0 */
/* The tenants of a run on the page of its job: where each is, words to it, and another list of them. */
"use strict";
const Tenants = (function () {
  const make = Page.make, WORDS = ["save", "sample", "pause", "resume", "stop"], EVERY = 2000;
  let shown = null; /* { id, rows, runs } */

  function row(parent, id, t, runs) {
    const line = make(parent, "tr", null, { "data-tenant": t.name });
    [t.name, t.state, t.step === undefined ? "" : t.step + (t.steps ? " of " + t.steps : ""), typeof t.loss === "number" ? Page.number(t.loss) : "", t.note || ""]
      .forEach((text) => make(line, "td", text));
    const actions = make(make(line, "td"), "div", null, { class: "actions" });
    if (!runs || t.state !== "under way") return;
    WORDS.forEach((word) => Jobs.button(actions, word, word, () => Server.act("POST", "/api/jobs/" + id + "/tenants", { tenant: t.name, word: word })));
  }
  async function refresh() {
    const here = shown, found = here && await Server.get("/api/jobs/" + here.id + "/tenants").catch(() => null);
    if (!here || here !== shown) return;
    if (found && JSON.stringify([found, here.runs]) !== here.drawn) {
      here.drawn = JSON.stringify([found, here.runs]);
      here.rows.textContent = "";
      found.tenants.forEach((t) => row(here.rows, here.id, t, here.runs));
    }
    if (here.runs) here.timer = setTimeout(refresh, EVERY);
  }
  function addList(parent, job) {
    const form = make(parent, "form", null, { id: "tenants-edit" });
    const text = make(form, "textarea", JSON.stringify(job.config.tenants, null, 2), { rows: 8, "aria-label": "tenants as JSON", spellcheck: "false" });
    const line = make(form, "div", null, { class: "actions" });
    make(line, "button", "use this list", { "data-action": "tenants" });
    make(line, "span", "All finish their step and are saved; those that stay go on.", { class: "note" });
    form.addEventListener("submit", async (e) => {
      e.preventDefault();
      let list = null;
      try { list = JSON.parse(text.value); } catch (why) { Server.say("tenants: " + why.message); return; }
      await Server.act("PUT", "/api/jobs/" + job.id + "/tenants", { tenants: list });
    });
  }
  /* In a section of the page; nothing for a run without tenants. */
  function build(parent, job) {
    const table = make(parent, "table"), head = make(make(table, "thead"), "tr");
    ["tenant", "state", "step", "loss", "last note", ""].forEach((title) => make(head, "th", title));
    shown = { id: job.id, rows: make(table, "tbody"), runs: false };
    if (Array.isArray(job.config.tenants)) addList(parent, job);
    refresh();
  }
  function take(job) {
    const runs = job.state === "running";
    if (!shown || shown.id !== job.id || shown.runs === runs) return;
    clearTimeout(shown.timer);
    shown.runs = runs;
    refresh();
  }
  function leave() {
    if (shown) clearTimeout(shown.timer);
    shown = null;
  }
  return { build: build, take: take, leave: leave };
})();
