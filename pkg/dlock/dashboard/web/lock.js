// One lock: its holders, its queue and its history.
import { getLock } from "./api.js";
import { distribution, table, timeline } from "./charts.js";
import { attributes, byId, foreign, link, make } from "./dom.js";
import { ask } from "./evict.js";
import { duration, modeOf, plural, visible, who } from "./format.js";
import { describe } from "./jobs.js";
import { due, heldSince, lease, setLease, since } from "./live.js";
import { model, syncClock } from "./model.js";

let open = null; // { source, key, parts, abort }

// show opens a lock.
export function show(source, key, failed, succeeded) {
  close();
  const view = byId("view-lock");
  const parts = {
    answer: make("div", "answer"), recipe: make("section", "panel"), holders: make("section", "panel"), queue: make("section", "panel"),
    timeline: make("section", "panel"), distributions: make("div", "pair"),
  };
  const title = attributes(make("h2", "key", foreign(visible(key))), { tabindex: "-1" });
  view.replaceChildren(make("p", "", link("#/", "", "← All locks")), title, make("p", "muted", visible(source)), ...Object.values(parts));
  open = { source, key, parts, title, drawn: {}, failed, succeeded, busy: false, again: false };
  refresh(source);
  title.focus({ preventScroll: true });
}

export function close() {
  open?.abort?.abort();
  open = null;
}

// clear forgets the lock, also where it cannot be seen.
export function clear() {
  close();
  byId("view-lock").replaceChildren();
}

// refresh asks for the lock anew after its source has changed. One request at a time is enough.
export async function refresh(source) {
  const lock = open;
  if (!lock || lock.source !== source) return;
  if (lock.busy) {
    lock.again = true;
    return;
  }
  lock.busy = true;
  lock.abort = new AbortController();
  try {
    const detail = await getLock(lock.source, lock.key, lock.abort.signal);
    if (open === lock) {
      draw(lock, detail);
      lock.succeeded();
    }
  } catch (err) {
    if (open === lock && err.name !== "AbortError") {
      if (err.code === "backend") drawUnknown(lock, err);
      lock.failed(err);
    }
  }
  lock.busy = false;
  if (lock.again && open === lock) {
    lock.again = false;
    refresh(source);
  }
}

// draw shows what has changed. Parts that are the same keep their elements, and so the focus.
function draw(lock, d) {
  syncClock(d.now);
  const { parts } = lock;
  for (const p of Object.values(parts)) p.hidden = false;
  part(lock, "answer", [d.holders.map(steadyPart), d.waiters, d.queue[0], d.error, d.job?.state, d.source_error, d.source_error && d.at], () => parts.answer.replaceChildren(...lastRead(d), ...answer(d)));
  part(lock, "recipe", [d.role, d.leader, d.job, d.runs, d.job || !d.leader || [d.holders.length, d.token, d.waiters]], () => parts.recipe.replaceChildren(...describe(d)));
  parts.recipe.hidden = parts.recipe.children.length === 0;
  part(lock, "holders", [d.holders.map(steadyPart), d.cannot_evict, model.evict], () => parts.holders.replaceChildren(...holders(d)));
  part(lock, "queue", [d.queue.map(steadyPart), d.waiters], () => parts.queue.replaceChildren(...queue(d)));
  const moment = Math.floor(d.now / 5000); // a picture moves slowly
  part(lock, "timeline", [d.history.length, d.history.at(-1)?.token, d.history.at(-1)?.ended, moment], () => {
    const wasOpen = parts.timeline.querySelector("details")?.open;
    parts.timeline.replaceChildren(...past(d));
    if (wasOpen) parts.timeline.querySelector("details").open = true;
  });
  part(lock, "distributions", [d.history], () => parts.distributions.replaceChildren(...distributions(d)));
  updateLeases(parts.holders, d.holders, d.backend);
  updateLeases(parts.queue, d.queue, d.backend);
}

// drawUnknown takes back what is shown: the lock may have changed since, and the server does not know it either.
function drawUnknown(lock, err) {
  const focused = Object.values(lock.parts).some((p) => p.contains(document.activeElement));
  lock.drawn = {};
  for (const [name, p] of Object.entries(lock.parts)) {
    p.replaceChildren();
    p.hidden = name !== "answer";
  }
  lock.parts.answer.replaceChildren(make("p", "error", visible(err.message)));
  if (focused) lock.title.focus({ preventScroll: true });
}

function part(lock, name, data, make) {
  const now = JSON.stringify(data);
  if (lock.drawn[name] === now) return;
  lock.drawn[name] = now;
  const focused = lock.parts[name].contains(document.activeElement) ? document.activeElement : null;
  const sameName = (e) => focusName(e) === focusName(focused);
  make();
  if (focused === null) return;
  const again = [...lock.parts[name].querySelectorAll("summary, [aria-label], button")].find(sameName);
  (again ?? lock.title).focus({ preventScroll: true });
}

// focusName tells the elements of a part that can have the focus apart. A button has the name of its
// holder, so that the focus never moves to that of another one.
function focusName(e) {
  return e.getAttribute("aria-label") ?? e.tagName;
}

// steadyPart is a claim without its lease, which changes with every renewal.
function steadyPart({ until, lease_ms, ...rest }) {
  return { ...rest, leased: Boolean(until) };
}

function updateLeases(part, claims, backend) {
  part.querySelectorAll(".lease").forEach((e, i) => setLease(e, claims[i], backend));
}

// lastRead says that the answer is an old one.
function lastRead(d) {
  if (!d.source_error) return [];
  return [make("p", "error", "The backend cannot be read: " + visible(d.source_error)), make("p", "warn", "When last read, ", since(d.at), " ago:")];
}

// answer says in one sentence who holds the lock.
function answer(d) {
  if (d.error) return [make("p", "error", "This key cannot be read as a lock: " + visible(d.error))];
  if (d.holders.length === 0) return [make("p", "", d.queue.length > 0 ? "The lock is free, and is about to pass to a waiter." : "The lock is free.")];
  const first = d.holders[0];
  if (d.role === "job" && d.job?.state === "done") return [make("p", "", "The job has run", d.job.last.ok ? "" : make("strong", "error", ", and has failed"), ". Its lock stays taken until the next run is due", ...(d.job.due ? [", ", make("strong", "", due(d.job.due))] : []), ".")];
  const line = make("p", "", "Held by ", make("strong", "", foreign(who(first))));
  if (first.purpose) line.append(" (", foreign(visible(first.purpose)), ")");
  if (d.holders.length > 1) line.append(" and " + (d.holder_count - 1) + " more");
  if (first.since) line.append(" for ", make("strong", "", heldSince(first)));
  line.append(". ");
  if (d.queue.length > 0) line.append(make("strong", "warn", plural(d.waiters, "client waits", "clients wait")), ", the first for ", since(d.queue[0].since), ".");
  else line.append(d.waiters === null ? "This backend does not know who waits." : "No client waits.");
  return [line];
}

function row(...cells) {
  return make("tr", "", ...cells);
}

function claimTable(label, heads, rows) {
  const head = row(...heads.map((t) => attributes(make("th", "", t), { scope: "col" })));
  return attributes(make("div", "scroll", make("table", "claims", make("thead", "", head), make("tbody", "", ...rows))), { tabindex: "0", role: "region", "aria-label": label });
}

function holders(d) {
  const all = [make("h3", "", "Holders", make("span", "muted", " " + modeOf(d)))];
  if (d.holders.length === 0) return [...all, make("p", "muted", "None.")];
  const rows = d.holders.map((h) => row(make("td", "", foreign(who(h))), make("td", "purposes", h.purpose ? foreign(visible(h.purpose)) : "–"),
    make("td", "number token", h.token || "–"), make("td", "number", heldSince(h)), make("td", "", lease(h, d.backend)), ...(model.evict ? [evictCell(d, h)] : [])));
  all.push(claimTable("Holders", ["Holder", "Purpose", "Token", "Held", "Lease left", ...(model.evict ? ["Action"] : [])], rows));
  if (d.holder_count > d.holders.length) all.push(make("p", "muted", "and " + plural(d.holder_count - d.holders.length, "more", "more")));
  if (d.cannot_evict && model.evict) all.push(make("p", "muted", visible(d.cannot_evict)));
  return all;
}

function evictCell(d, holder) {
  const button = make("button", "danger", "Evict…");
  button.type = "button";
  button.setAttribute("aria-label", "Evict… the holder with token " + holder.token);
  button.disabled = Boolean(d.cannot_evict) || !holder.token;
  button.addEventListener("click", () => ask(d.source, d.key, holder, d.holders.length > 1));
  return make("td", "", button);
}

// orderOf says in which order the queue is. Redlock has none: its waiters compete.
function orderOf(d) {
  if (d.waiters === null) return "";
  return d.backend === "redlock" ? " the longest wait first; this backend serves in no fixed order" : " in the order in which it will be served";
}

function queue(d) {
  const all = [make("h3", "", "Queue", make("span", "muted", orderOf(d)))];
  if (d.waiters === null) return [...all, make("p", "muted", "This backend does not know who waits: only the waiting processes do.")];
  if (d.queue.length === 0) return [...all, make("p", "muted", "No client waits.")];
  const rows = d.queue.map((w, i) => row(make("td", "number", String(i + 1)), make("td", "", foreign(who(w))), make("td", "purposes", w.purpose ? foreign(visible(w.purpose)) : "–"),
    make("td", "", w.mode), make("td", "number", since(w.since)), make("td", "", lease(w, d.backend))));
  all.push(claimTable("Queue", ["Place", "Waiter", "Purpose", "Mode", "Waiting", "Lease left"], rows));
  if (d.waiters > d.queue.length) all.push(make("p", "muted", "and " + plural(d.waiters - d.queue.length, "more", "more")));
  return all;
}

function sampled(d) {
  return `Seen since this page's server started ${duration(d.now - d.started)} ago, while the page was open, every ${duration(d.interval_ms)}: shorter holds and waits can be missing.`;
}

function past(d) {
  const all = [make("h3", "", "Recent holders")];
  if (d.history.length === 0) return [...all, make("p", "muted", "None seen yet. " + sampled(d))];
  return [...all, timeline(d.history), make("p", "muted", sampled(d)), table(d.history)];
}

function distributions(d) {
  const held = d.history.filter((h) => h.ended && h.since && !h.unsure && !h.with_wait).map((h) => Math.max(0, h.ended - h.since));
  const waits = d.history.filter((h) => h.waited_ms !== undefined).map((h) => h.waited_ms);
  return [distribution("How long it was held", held, "No hold has ended yet of which the length is known."), distribution("How long holders waited", waits, "No waiter was served yet.")];
}
