/* SPDX-License-Identifier: Apache-2.0 */
/* Tries the model of a job on a prompt, with the base and with what was trained: a text that grows, or a picture. */
"use strict";
const Try = (function () {
  const make = Page.make;

  function addForm(parent) {
    const form = make(parent, "form", null, { id: "chat" }), prompt = make(form, "textarea", null, { rows: 3, "aria-label": "prompt", required: "", id: "prompt" });
    const line = make(form, "div", null, { class: "actions" });
    const field = (text, attributes) => make(make(line, "label", text + " "), "input", null, attributes);
    return { form: form, prompt: prompt, line: line, field: field };
  }
  /* One answer below or beside the other. */
  function addBoxes(parent, job, name) {
    const side = make(parent, "div", null, { class: "side" }), trained = job.config && job.config.lora ? "with the adapter" : "trained model";
    return [["base", false], [trained, true]].map(([title, isTrained]) => {
      const box = make(side, "div");
      make(box, "h3", title);
      return { into: make(box, name, "", { tabindex: 0, class: isTrained ? "answer-trained" : "answer-base" }), trained: isTrained };
    });
  }
  /* Asks both, one after the other. */
  function onSubmit(form, boxes, ask) {
    form.addEventListener("submit", async (e) => {
      e.preventDefault();
      const b = form.querySelector("button");
      b.disabled = true;
      for (const box of boxes) {
        box.into.textContent = "";
        await ask(box).catch((why) => { box.into.textContent = why.message; });
      }
      b.disabled = false;
    });
  }
  function addText(parent, job) {
    const f = addForm(parent);
    const tokens = f.field("tokens", { type: "number", min: 1, max: 4096, value: 128 });
    const heat = f.field("temperature", { type: "number", min: 0, max: 5, step: 0.1, value: 0 });
    const seed = f.field("seed", { type: "number", min: 0, value: 42 });
    const chat = f.field("chat template", { type: "checkbox", checked: "" });
    make(f.line, "button", "generate", { class: "main" });
    onSubmit(f.form, addBoxes(parent, job, "pre"), (box) => {
      const body = { prompt: f.prompt.value, trained: box.trained, chat: chat.checked, max_new_tokens: +tokens.value, temperature: +heat.value, seed: +seed.value };
      return Server.pour("/api/jobs/" + job.id + "/chat", body, (t) => { box.into.textContent += t; });
    });
  }
  function addPicture(parent, job) {
    const sides = job.config.image.resolution, f = addForm(parent), side = { type: "number", min: 16, max: 8192, step: 16, value: (Array.isArray(sides) ? sides[0] : sides) || 512 };
    const width = f.field("width", side), height = f.field("height", side);
    const steps = f.field("steps", { type: "number", min: 1, max: 1000, placeholder: "the model's" });
    const seed = f.field("seed", { type: "number", min: 0, value: 42 });
    make(f.line, "button", "draw", { class: "main" });
    onSubmit(f.form, addBoxes(parent, job, "div"), async (box) => {
      const body = { prompt: f.prompt.value, trained: box.trained, width: +width.value, height: +height.value, steps: +steps.value, seed: +seed.value };
      make(box.into, "p", "…", { class: "note" });
      const source = await Server.picture("/api/jobs/" + job.id + "/draw", body);
      box.into.textContent = "";
      make(box.into, "img", null, { alt: f.prompt.value, src: source });
    });
  }
  function build(parent, job) {
    if (job.config && job.config.image) addPicture(parent, job);
    else addText(parent, job);
  }
  return { build: build };
})();
