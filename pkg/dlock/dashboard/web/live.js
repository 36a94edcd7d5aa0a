// Times that count on the screen. An element says since when or until when; this writes it anew
// every second, by the browser's clock.
import { make, write } from "./dom.js";
import { running } from "./format.js";
import { now } from "./model.js";

// since returns an element that shows how long ago a time is.
export function since(ms, className = "") {
  const e = make("span", ("time " + className).trim());
  setSince(e, ms);
  return e;
}

// heldSince is since for a holder.
export function heldSince(claim) {
  const e = since(0);
  setHeldSince(e, claim);
  return e;
}

// due returns an element that shows when a time comes, or since when it is over.
export function due(ms) {
  const e = make("span", "time");
  e.dataset.due = ms;
  tick(e);
  return e;
}

export function setSince(e, ms) {
  if (ms) e.dataset.since = ms;
  else delete e.dataset.since;
  tick(e);
}

// setHeldSince marks a time that includes an unknown wait.
export function setHeldSince(e, claim) {
  e.dataset.sign = claim?.with_wait ? "≤ " : "";
  e.title = claim?.with_wait ? "with the time that it waited: this backend does not tell them apart" : "";
  setSince(e, claim?.since);
}

// lease returns a bar that drains until a lease ends.
export function lease(claim, backend) {
  const fill = make("span", "fill");
  const e = make("span", "lease", make("span", "left"), make("span", "bar", fill));
  setLease(e, claim, backend);
  return e;
}

// setLease shows a lease. Only files have none; another backend may not say when it ends.
export function setLease(e, claim, backend) {
  e.dataset.missing = backend === "file" ? "no lease" : "lease not known";
  if (claim?.until) {
    e.dataset.until = claim.until;
    e.dataset.lease = claim.lease_ms || 1;
  } else {
    delete e.dataset.until;
  }
  tick(e);
}

// tick writes one element.
function tick(e) {
  if (e.classList.contains("lease")) return tickLease(e);
  if (e.dataset.due) return tickDue(e);
  write(e, e.dataset.since ? (e.dataset.sign || "") + running(now() - Number(e.dataset.since)) : "–");
}

function tickDue(e) {
  const ms = Number(e.dataset.due) - now();
  write(e, ms > 0 ? "in " + running(ms + 999) : "since " + running(-ms));
}

function tickLease(e) {
  const [left, bar] = e.children;
  bar.hidden = !e.dataset.until;
  if (!e.dataset.until) return write(left, e.dataset.missing);
  const ms = Number(e.dataset.until) - now();
  const part = Math.max(0, Math.min(1, ms / Number(e.dataset.lease)));
  write(left, ms > 0 ? running(ms + 999) : "ended");
  bar.firstChild.style.width = (100 * part).toFixed(1) + "%";
  e.classList.toggle("low", part < 0.3);
}

// tickAll writes all elements on the screen.
export function tickAll() {
  for (const e of document.querySelectorAll(".time, .lease")) tick(e);
}
