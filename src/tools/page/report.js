/* SPDX-License-Identifier: Apache-2.0 */
/* The report of one run or several: curves, times, memory, ranks, checkpoints, samples, settings, what happened. */
"use strict";
(function () {
  const make = Page.make, number = Page.number, bytes = Page.bytes, runs = Page.data.runs, one = runs.length === 1;
  const GROUPS = [
    ["Loss", /^(loss|eval_loss)$/], ["Gradient norm", /^grad_norm$/], ["Learning rate", /^lr$/],
    ["Tokens per second", /^tokens_per_second$/],
    ["Time of a step, seconds", /^(step|data_wait|comm|comm_gather|comm_exchange|comm_hidden|save_stall|offload_wait|offload_hidden)_seconds$/],
    ["Memory of rank 0 (rss) and of all ranks (pss)", /^(rss|pss)_bytes$/, bytes],
    ["Bytes moved in a step", /^(gathered|from_hosts|offload)_bytes$/, bytes],
    ["Computation of each rank, seconds", /^rank_busy_seconds\[/], ["Slowest rank", /^slowest_rank$/],
    ["Tokens in a step", /^(tokens|supervised_tokens)$/],
  ];
  const curveOf = (run, name) => run.curves.find((c) => c.name === name);
  const fact = (run, name, what) => { const c = curveOf(run, name); return c ? c[what] : null; };
  const named = (run, text) => one ? text : run.name + ": " + text;
  const events = (run, kind) => run.events.filter((e) => e.event === kind);
  const lastStart = (run) => events(run, "start").pop() || null;
  const shown = (x) => x === null || x === undefined ? null : typeof x === "string" ? x : JSON.stringify(x);

  function addOverview() {
    const run = runs[0], start = lastStart(run), config = start && start.config || {};
    Page.begin(one ? run.name : "Training report",
      one ? [config.model, start && start.family, run.state].filter(Boolean).join(" · ") : runs.length + " runs");
    const total = (r, name) => fact(r, name, "sum") || 0;
    if (one) {
      const stepText = number(run.step) + (run.of_steps ? " of " + number(run.of_steps) : "");
      const list = [["state", run.state, stepText + " steps"]];
      if (curveOf(run, "loss")) list.push(["loss", number(fact(run, "loss", "last")), "least " + number(fact(run, "loss", "min"))]);
      if (curveOf(run, "eval_loss")) list.push(["eval loss", number(fact(run, "eval_loss", "last")), "least " + number(fact(run, "eval_loss", "min"))]);
      list.push(["tokens", number(total(run, "tokens")), number(total(run, "supervised_tokens")) + " supervised"]);
      if (fact(run, "tokens_per_second", "mean") !== null) list.push(["tokens per second", number(Math.round(fact(run, "tokens_per_second", "mean"))), "mean over steps"]);
      list.push(["time in steps", Page.duration(total(run, "step_seconds"))]);
      if (fact(run, "pss_bytes", "max") !== null) list.push(["memory, all ranks", bytes(fact(run, "pss_bytes", "max")), "most, shared pages once"]);
      if (run.parameters_trained) list.push(["parameters trained", number(run.parameters_trained), number(run.parameters_frozen) + " frozen"]);
      Page.tiles(Page.main, list);
    } else {
      Page.table(Page.section("Runs"), ["run", "state", "steps", "loss, last", "loss, least", "eval loss, last", "eval loss, least", "tokens", "seconds in steps", "parameters trained"],
        runs.map((r) => [r.name, r.state, number(r.step) + (r.of_steps ? " of " + number(r.of_steps) : ""),
          ...["loss", "eval_loss"].flatMap((n) => ["last", "min"].map((w) => curveOf(r, n) ? number(fact(r, n, w)) : null)),
          number(total(r, "tokens")), number(total(r, "step_seconds")), r.parameters_trained ? number(r.parameters_trained) : null]));
    }
    runs.filter((r) => r.unreadable_lines).forEach((r) => make(Page.main, "p", named(r, r.unreadable_lines +
      " unreadable line(s) of the metrics are left out. A run that is under way or was killed leaves one."), { class: "note" }));
  }

  /* ---- curves */

  /* A line where a start went on behind steps that were done. */
  function marks() {
    return runs.flatMap((run) => events(run, "start").filter((e) => e.step > 0)
      .map((e) => ({ step: e.step, text: named(run, "resumed after step " + e.step + ", " + Page.time(e.time)) })));
  }
  function addCharts() {
    const section = Page.section("Curves"), all = marks();
    Charts.controls(section);
    const parent = make(section, "div", null, { class: "charts" }), taken = new Set(), zero = new Set();
    const add = (title, fits, show) => {
      const lines = [];
      runs.forEach((run) => run.curves.forEach((curve) => {
        if (!fits(curve.name) || !curve.count) return;
        taken.add(curve.name);
        if (curve.min === 0 && curve.max === 0) zero.add(curve.name);
        else lines.push({ curve: curve, label: named(run, curve.name) });
      }));
      if (lines.length) Charts.add(parent, title, lines, all, show);
    };
    GROUPS.forEach((group) => add(group[0], (name) => group[1].test(name), group[2]));
    new Set(runs.flatMap((run) => run.curves.map((c) => c.name))).forEach((name) => {
      if (!taken.has(name)) add(name, (other) => other === name);
    });
    if (zero.size) make(section, "p", "0 in all steps of a run, and not drawn: " + [...zero].join(", ") + ".", { class: "note" });
    if (all.length) make(section, "p", "Dotted lines: the run was resumed there.", { class: "note" });
    Charts.redraw();
  }

  /* ---- times, memory, ranks */

  function addTimes() {
    const section = Page.section("Where the time of rank 0 went");
    runs.forEach((run) => {
      const get = (name) => fact(run, name, "sum") || 0, all = get("step_seconds");
      if (!all) return;
      const whole = all + get("save_stall_seconds") + get("eval_seconds");
      const row = (text, seconds, hatched) => [text, seconds, Page.duration(seconds) + " · " + (100 * seconds / whole).toFixed(1) + " %", hatched];
      const gather = get("comm_gather_seconds"), exchange = get("comm_exchange_seconds"), comm = get("comm_seconds");
      if (!one) make(section, "h3", run.name);
      Page.bars(section, [
        row("computation and the rest", all - comm - get("data_wait_seconds") - get("offload_wait_seconds")),
        row("exposed: gathering parameters", gather), row("exposed: exchanging gradients", exchange),
        row("exposed: other communication", Math.max(0, comm - gather - exchange)),
        row("waiting for data", get("data_wait_seconds")), row("waiting for the file of fsdp.offload", get("offload_wait_seconds")),
        row("saving, between steps", get("save_stall_seconds")), row("evaluation, between steps", get("eval_seconds")),
        row("hidden communication, beside the computation", get("comm_hidden_seconds"), true),
      ].filter((r, i) => i === 0 || r[1] > 0));
    });
    make(section, "p", "Solid bars add up to the time of the steps and of what stood between them; a hatched bar ran beside the computation.", { class: "note" });
  }
  const MEMORY = { shard_bytes: "its parameters", gradient_bytes: "gradients", optimizer_bytes: "moments and masters",
    gather_buffer_bytes: "buffers to gather into", kept_bytes: "parts kept for the backward", exchange_buffer_bytes: "buffers for other hosts' sums",
    token_message_bytes: "messages to others' experts",
    snapshot_bytes: "copy of what is saved", spare_bytes: "copies for --elastic", activation_bytes: "activations and scratch", sample_bytes: "samples" };
  function addMemory() {
    const planned = runs.filter((run) => lastStart(run) && lastStart(run).memory);
    if (!planned.length) return;
    const section = Page.section("Memory of a rank, as planned");
    planned.forEach((run) => {
      const memory = lastStart(run).memory;
      if (!one) make(section, "h3", run.name);
      Page.bars(section, Object.keys(MEMORY).filter((k) => memory[k]).map((k) => [MEMORY[k], memory[k], bytes(memory[k])]));
      make(section, "p", "Together " + bytes(memory.peak_bytes) + " a rank, " + bytes(memory.all_ranks_bytes) + " all ranks. The program itself comes on top.", { class: "note" });
    });
  }
  function addRanks() {
    const list = runs.map((run) => [run, run.curves.filter((c) => /^rank_busy_seconds\[/.test(c.name) && c.count)]).filter((r) => r[1].length > 1);
    if (!list.length) return;
    const section = Page.section("Computation of each rank");
    list.forEach(([run, curves]) => {
      if (!one) make(section, "h3", run.name);
      Page.bars(section, curves.slice(0, 256).map((c) => ["rank " + c.name.slice(18, -1), c.mean,
        +c.mean.toPrecision(4) + " s a step, at most " + +c.max.toPrecision(4) + " s"]));
      if (curves.length > 256) make(section, "p", (curves.length - 256) + " more ranks are in the data of this page.", { class: "note" });
    });
  }

  /* ---- checkpoints, samples */

  function addCheckpoints() {
    const rows = runs.flatMap((run) => {
      const c = curveOf(run, "eval_loss"), at = (step) => c ? c.values[c.steps.indexOf(step)] : undefined;
      const known = run.checkpoints.map((k) => at(k.step)).filter((v) => typeof v === "number"), best = Math.min(...known);
      return run.checkpoints.map((k) => {
        const value = at(k.step), cells = [number(k.step), typeof value === "number" ? number(value) : null, bytes(k.bytes), number(k.files),
          typeof value === "number" && value === best ? "best of those kept" : ""];
        return one ? cells : [run.name, ...cells];
      });
    });
    if (!rows.length) return;
    const head = ["step", "eval loss", "size", "files", ""];
    Page.table(Page.section("Checkpoints"), one ? head : ["run", ...head], rows);
  }
  function addSamples() {
    if (!runs.some((run) => run.samples.length || run.pictures.length)) return;
    const section = Page.section("Samples"), box = make(section, "div", null, { class: "samples" });
    runs.forEach((run) => run.samples.forEach((s) => {
      const card = make(box, "div");
      make(card, "h3", named(run, "step " + s.step));
      make(card, "pre", s.text + (s.cut ? " …" : ""), { tabindex: 0 });
    }));
    runs.forEach((run) => run.pictures.forEach((p) =>
      Page.picture(box, p, (lastStart(run) || {}).config, named(run, "step " + p.step))));
    runs.filter((run) => run.pictures_left_out).forEach((run) =>
      make(section, "p", named(run, run.pictures_left_out + " more picture(s) in samples/."), { class: "note" }));
    runs.filter((run) => run.samples_left_out).forEach((run) =>
      make(section, "p", named(run, run.samples_left_out + " more file(s) in samples/."), { class: "note" }));
  }

  /* ---- settings, machine, history */

  function flatten(tree, prefix, out) {
    Object.keys(tree).forEach((key) => {
      const value = tree[key];
      if (value && typeof value === "object" && !Array.isArray(value)) flatten(value, prefix + key + ".", out);
      else if (!key.startsWith("//")) out[prefix + key] = value;
    });
    return out;
  }
  /* A row a key, a column a run; rows that differ come first. */
  function addTrees(title, note, get) {
    const cut = runs.filter((run) => lastStart(run) && lastStart(run)[get + "_bytes"]);
    const trees = runs.map((run) => flatten(lastStart(run) && lastStart(run)[get] || {}, "", {}));
    const keys = [...new Set(trees.flatMap(Object.keys))];
    if (!keys.length && !cut.length) return;
    const section = Page.section(title);
    cut.forEach((run) => make(section, "p", named(run, "left out, for it has " + bytes(lastStart(run)[get + "_bytes"]) + ": see events.jsonl."), { class: "note" }));
    if (!keys.length) return;
    const rows = keys.map((key) => {
      const cells = trees.map((t) => shown(t[key])), row = [key, ...cells.map((c) => c && c.length > 300 ? c.slice(0, 300) + " …" : c)];
      if (new Set(cells).size > 1) row.name = "differs";
      if (!one) row.push(row.name ? "differs" : "");
      return row;
    });
    if (!one) rows.sort((a, b) => (b.name ? 1 : 0) - (a.name ? 1 : 0));
    Page.table(section, ["key", ...(one ? ["value"] : runs.map((r) => r.name)), ...(one ? [] : [""])], rows);
    if (note) make(section, "p", note, { class: "note" });
  }
  /* What is gathered together, and under which strategy. */
  function addGroups() {
    const groups = (run) => { const list = (lastStart(run) || {}).groups; return Array.isArray(list) ? list.filter(Boolean) : []; };
    const rows = runs.flatMap((run) => groups(run).map((g) => {
      const row = [g.parameters, number(g.groups), bytes(g.gathered_bytes), g.param_dtype, g.strategy + " over " + g.shard_ranks, number(g.recomputed), g.when];
      return one ? row : [run.name, ...row];
    }));
    const head = ["gathered together", "groups", "bytes", "dtype", "strategy", "recomputed", "when"];
    if (rows.length) Page.table(Page.section("Sharding"), one ? head : ["run", ...head], rows);
  }
  function addHistory() {
    const rows = runs.flatMap((run) => {
      let open = false;
      const out = [], put = (e, what, text) => out.push(one ? [Page.time(e.time), what, text] : [Page.time(e.time), run.name, what, text]);
      run.events.forEach((e) => {
        if (e.event === "start") {
          if (open) put(e, "interrupted", "the run before this start did not end by itself");
          put(e, e.step ? "resumed" : "started", (e.step ? "after step " + e.step + ", " : "") + "with " + (e.machine || {}).ranks + " rank(s) on " + (e.machine || {}).host);
          open = true;
        } else if (e.event === "end") {
          put(e, e.how, "after step " + e.step + (e.text ? ": " + e.text : ""));
          open = false;
        } else if (e.event === "note") put(e, "note", e.text);
      });
      if (open && run.state === "interrupted") out.push(one ? ["later", "interrupted", "it did not end by itself"] : ["later", run.name, "interrupted", "it did not end by itself"]);
      return out;
    });
    if (!rows.length) return;
    const section = Page.section("What happened");
    Page.table(section, one ? ["time", "what", ""] : ["time", "run", "what", ""], rows);
    runs.filter((run) => run.state !== "finished" && run.state !== "under way" && lastStart(run) && lastStart(run).command).forEach((run) => {
      make(section, "p", named(run, "to go on:"));
      make(section, "pre", lastStart(run).command, { tabindex: 0 });
    });
  }

  addOverview();
  addCharts();
  addTimes();
  addMemory();
  addRanks();
  addCheckpoints();
  addSamples();
  addGroups();
  addTrees("Config", one ? null : "Rows that differ between the runs come first.", "config");
  addTrees("Machine and program", null, "machine");
  addTrees("Data", null, "data");
  addHistory();
})();
