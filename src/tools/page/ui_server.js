/* SPDX-License-Identifier: Apache-2.0 */
/* The page and its server: the token, requests, and one stream of events. The token comes in the fragment of the first
 * address, which no log and no other server sees. */
"use strict";
const Server = (function () {
  const KEY = "fsdptrain-token";
  const said = document.getElementById("said"), state = document.getElementById("state");
  let clock = null;

  /* A fragment that is no route is a token. */
  function takeToken() {
    const fragment = location.hash.slice(1);
    if (!fragment || fragment.startsWith("/")) return;
    localStorage.setItem(KEY, fragment);
    history.replaceState(null, "", location.pathname + "#/jobs");
  }
  function say(text) {
    said.textContent = text;
    clearTimeout(clock);
    if (text) clock = setTimeout(() => { said.textContent = ""; }, 12000);
  }
  function headers(more) {
    return Object.assign({ Authorization: "Bearer " + (localStorage.getItem(KEY) || "") }, more);
  }
  async function refusal(answer) {
    const body = await answer.json().catch(() => ({}));
    const why = new Error(body.error || answer.status + " " + answer.statusText);
    why.refused = answer.status < 500;
    return why;
  }
  async function call(method, path, body, type) {
    const how = { method: method, headers: headers() };
    if (method !== "GET") {
      how.headers["Content-Type"] = type || "application/json";
      how.body = type ? body : JSON.stringify(body || {});
    }
    const answer = await fetch(path, how);
    if (!answer.ok) throw await refusal(answer);
    return answer.json();
  }
  const get = (path) => call("GET", path), post = (path, body) => call("POST", path, body);
  /* The address of a picture that only requests with the token get. body: of a picture that is drawn first, whose answer
   * is the text of an error if it fails. */
  async function picture(path, body) {
    const how = body ? { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) } : { headers: headers() };
    const answer = await fetch(path, how);
    if (!answer.ok) throw await refusal(answer);
    const reader = new FileReader(), blob = await answer.blob();
    if (body && await blob.slice(1, 4).text() !== "PNG") throw new Error(await blob.text() || "nothing was drawn");
    return new Promise((done, failed) => {
      reader.onload = () => done(reader.result);
      reader.onerror = () => failed(reader.error);
      reader.readAsDataURL(blob);
    });
  }
  /* Like call(), but shows errors. Returns the answer, or null. */
  async function act(method, path, body) {
    say("");
    try {
      return await call(method, path, body);
    } catch (e) {
      say(e.message);
      return null;
    }
  }
  /* Calls take() with each piece of a streamed answer. */
  async function pour(path, body, take, signal) {
    const answer = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal: signal });
    if (!answer.ok) throw await refusal(answer);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) take(piece.value);
  }
  async function follow(href) {
    const ticket = await act("POST", href[0], { file: href[1] });
    return ticket ? ticket.href : null;
  }
  async function download(job, file) {
    const href = await follow(["/api/jobs/" + job + "/tickets", file]);
    if (!href) return;
    const a = document.createElement("a");
    a.href = href;
    a.download = "";
    a.click();
  }
  async function openReport(job) {
    const page = window.open("about:blank", "_blank");
    const href = await follow(["/api/jobs/" + job + "/tickets", ""]);
    if (!page) say("The browser has not opened the report: allow new windows for this page.");
    else if (href) { page.opener = null; page.location = href; } else page.close();
  }

  /* ---- the stream */

  let listens = null, wanted = null;
  function parse(text, take) {
    text.split("\n\n").forEach((block) => {
      const name = /^event: (.*)$/m.exec(block), data = /^data: (.*)$/m.exec(block);
      if (name && data) take(name[1], JSON.parse(data[1]));
    });
  }
  async function listen(mine) {
    const at = mine.at, query = "job=" + (at.job || 0) + "&metrics=" + (at.metrics || 0) + "&log=" + (at.log || 0);
    const answer = await fetch("/api/stream?" + query, { headers: headers(), signal: mine.stop.signal });
    if (!answer.ok) throw await refusal(answer);
    state.textContent = "live";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      rest += piece.value;
      const end = rest.lastIndexOf("\n\n");
      if (end < 0) continue;
      parse(rest.slice(0, end), (name, data) => {
        if (name !== "jobs") at[name] = data.next;
        if (mine === listens) mine.take(name, data);
      });
      rest = rest.slice(end + 2);
    }
  }
  /* A browser has six connections to a server, for all its tabs: those that nobody sees must not hold them. */
  function release() {
    if (listens && listens.stop) listens.stop.abort();
  }
  async function shown() {
    while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
  }
  document.addEventListener("visibilitychange", () => { if (document.hidden) release(); });
  addEventListener("pagehide", release);

  /* Ends the stream. Call before another page is drawn, so that no late event draws over it. */
  function leave() {
    release();
    listens = null;
  }
  /* at: { job, metrics, log }: the job and the offsets to start from. take(name, data) gets each event. Replaces the current stream. */
  function stream(at, take) {
    leave();
    const mine = { at: at, take: take, stop: null };
    listens = mine;
    (async function () {
      while (mine === listens) {
        await shown();
        if (mine !== listens) return;
        mine.stop = new AbortController();
        try {
          await listen(mine);
          throw new Error("ended");
        } catch (e) {
          if (mine !== listens) return;
          if (!document.hidden) state.textContent = e.refused ? e.message : "no connection to the server; trying again";
          await new Promise((done) => setTimeout(done, 1500));
        }
      }
    })();
  }

  return { takeToken: takeToken, say: say, get: get, post: post, call: call, act: act, picture: picture, pour: pour, download: download,
    openReport: openReport, stream: stream, leave: leave };
})();
