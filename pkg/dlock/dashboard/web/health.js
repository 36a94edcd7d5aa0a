// The line at the top and the page about the health of the backends.
import { byId, link, make, write } from "./dom.js";
import { latency, linkTo, plural, visible, who } from "./format.js";
import { setSince, since } from "./live.js";
import { model } from "./model.js";
import * as own from "./own.js";

const late = 5; // intervals, after which a source that says nothing is worth a warning
const longPause = 6; // the server reads a source once in five times the time that a reading takes

// stateOf returns how a source is: ok, warning, unsafe, lost (it has lost locks) or down.
function stateOf(s) {
  if (s.error) return "down";
  if (own.recentLosses(s).length > 0) return "lost";
  const levels = new Set((s.findings || []).map((f) => f.level));
  return levels.has("unsafe") ? "unsafe" : levels.has("warning") || own.isLate(s) ? "warning" : s.at ? "ok" : "unknown";
}

const stateText = { ok: "ok", warning: "warnings", unsafe: "unsafe", lost: "locks lost", down: "not readable", unknown: "reading…" };

// refreshLine shows one entry for each source. Entries keep their elements.
export function refreshLine() {
  const list = byId("sources");
  const sources = [...model.sources.values()];
  while (list.children.length > sources.length) list.lastChild.remove();
  sources.forEach((s, i) => {
    if (!list.children[i]) list.append(make("li", "", link("#/health", "", make("span", "dot"), make("span", "name"), make("span", "facts muted"))));
    const a = list.children[i].firstChild;
    const state = stateOf(s);
    list.children[i].className = state;
    write(a.children[1], visible(s.source));
    write(a.children[2], facts(s, state));
  });
}

function facts(s, state) {
  if (state === "down") return [...own.facts(s), "not readable: " + visible(s.error)].join(" · ");
  if (!s.at) return "reading…";
  const parts = [...own.facts(s), plural(s.locks, "lock", "locks") + (s.more ? " or more" : ""), "answers in " + latency(s.answer_ms)];
  const count = (level) => (s.findings || []).filter((f) => f.level === level).length;
  if (count("unsafe")) parts.push(plural(count("unsafe"), "unsafe setting", "unsafe settings"));
  if (count("warning")) parts.push(plural(count("warning"), "warning", "warnings"));
  return parts.join(" · ");
}

// refreshPage shows the findings of all sources.
export function refreshPage() {
  if (byId("view-health").hidden) return;
  const sources = [...model.sources.values()];
  const now = JSON.stringify(sources.map((s) => [s.source, s.error, Boolean(s.at), s.findings, stateOf(s)]));
  if (now !== drawn) byId("health-list").replaceChildren(...sources.map(section)); // or a selection of text would be lost
  drawn = now;
  sources.forEach((s, i) => {
    const box = byId("health-list").children[i];
    fillLine(box.querySelector(".line"), s);
    own.fill(box.querySelector(".own"), s);
  });
}

let drawn = "";

// clear forgets the findings, also where they cannot be seen.
export function clear() {
  drawn = "";
  byId("health-list").replaceChildren();
}

function fillLine(line, s) {
  write(line.firstChild, s.backend + ", " + plural(s.locks, "lock", "locks") + (s.at ? ", answers in " + latency(s.answer_ms) + ", all locks in " + latency(s.round_ms) + ", read " : ""));
  setSince(line.children[1], s.at);
  line.children[1].hidden = line.lastChild.hidden = !s.at;
}

function section(s) {
  const state = stateOf(s);
  const box = make("section", "panel health " + state, make("h3", "", visible(s.source), make("span", "badge " + state, stateText[state])));
  if (s.error) box.append(make("p", "error", visible(s.error)));
  box.append(make("p", "muted line", make("span"), since(s.at), make("span", "", " ago")), own.panel(), make("h4", "", "Settings"), findings(s));
  return box;
}

const rank = { unsafe: 0, warning: 1, ok: 2 };

function findings(s) {
  if (!s.findings) return make("p", "muted", "The settings are not checked yet.");
  if (s.findings.length === 0) return make("p", "muted", "This backend has no settings to check.");
  const list = make("ul", "findings");
  for (const f of [...s.findings].sort((a, b) => rank[a.level] - rank[b.level])) {
    const item = make("li", f.level, make("span", "badge " + f.level, f.level), make("strong", "", visible(f.name)), " ", visible(f.detail));
    if (f.level !== "ok" && f.fix) item.append(make("p", "fix", "Cure: " + visible(f.fix)));
    list.append(item);
  }
  return list;
}

// refreshRings points out owners that wait for each other.
export function refreshRings() {
  byId("rings").hidden = model.rings.length === 0;
  byId("rings-list").replaceChildren(...model.rings.map((ring) => {
    const list = make("ol", "ring");
    ring.steps.forEach((s, i) => {
      const next = ring.steps[(i + 1) % ring.steps.length];
      list.append(make("li", "", make("strong", "", who(s)), " waits for ", link(linkTo(s.source, s.key), "key", visible(s.key)), ", held by ", make("strong", "", who(next))));
    });
    return list;
  }));
}

// isLate reports whether a source has not been read for a while.
export function isLate(s, time) {
  return s.at > 0 && time - s.at > Math.max(5000, late * model.interval, longPause * s.round_ms);
}
