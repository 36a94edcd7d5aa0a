// Pictures of the history of one lock.
import { attributes, foreign, make, svg } from "./dom.js";
import { duration, plural, visible, who } from "./format.js";
import { now } from "./model.js";

const lanes = 8; // owners with a lane of their own
const laneHeight = 26;
const labelWidth = 230;
const width = 900;

// timeline draws who held the lock when, one lane for each owner, the current holder on top.
export function timeline(history) {
  const end = now();
  const start = firstTime(history, end);
  const span = Math.max(1000, end - start);
  const x = (t) => labelWidth + ((Math.max(start, t) - start) / span) * (width - labelWidth - 8);
  const owners = lanesOf(history);
  const height = owners.length * laneHeight + 26;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "timeline", role: "img", "aria-label": describe(history, owners, span) });
  owners.forEach(({ name, holdings }, lane) => {
    const y = lane * laneHeight;
    picture.append(svg("line", { x1: labelWidth, x2: width - 8, y1: y + laneHeight - 2, y2: y + laneHeight - 2, class: "lane" }));
    picture.append(svg("text", { x: labelWidth - 10, y: y + 17, class: "label" }, name.length > 32 ? name.slice(0, 31) + "…" : name));
    for (const h of holdings) picture.append(bar(h, x, y, end));
  });
  axis(picture, start, span, x, height);
  return picture;
}

// firstTime is where the picture begins: a holder from long before would squeeze all others.
function firstTime(history, end) {
  const times = history.map((h) => h.since || h.ended || end);
  const first = Math.min(end, ...times);
  const ended = history.filter((h) => h.ended);
  if (ended.length === 0) return first;
  const spread = end - Math.min(...ended.map((h) => h.since || h.ended));
  return Math.max(first, end - 2 * Math.max(spread, 1000));
}

function lanesOf(history) {
  const byOwner = new Map();
  for (const h of [...history].reverse()) {
    const name = who(h);
    if (!byOwner.has(name)) byOwner.set(name, []);
    byOwner.get(name).push(h);
  }
  const all = [...byOwner].map(([name, holdings]) => ({ name, holdings }));
  all.sort((a, b) => b.holdings.some((h) => !h.ended) - a.holdings.some((h) => !h.ended));
  if (all.length <= lanes) return all;
  const rest = all.slice(lanes - 1);
  return [...all.slice(0, lanes - 1), { name: plural(rest.length, "other", "others"), holdings: rest.flatMap((o) => o.holdings) }];
}

function bar(h, x, y, end) {
  const from = x(h.since || h.ended || end);
  const to = x(h.ended || end);
  const kind = h.ended ? (h.unsure || h.with_wait ? "past unsure" : "past") : "current";
  const e = svg("rect", { x: from, y: y + 4, width: Math.max(2, to - from), height: laneHeight - 10, rx: 2, class: kind });
  const held = h.since ? signOf(h) + duration((h.ended || end) - h.since) : "an unknown time";
  const purpose = h.purpose ? " (" + visible(h.purpose) + ")" : "";
  e.append(svg("title", {}, `${who(h)}${purpose}, token ${h.token || "unknown"}, held for ${held}${h.ended ? "" : ", still holds"}`));
  return e;
}

function axis(picture, start, span, x, height) {
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const at = start + span * part;
    const anchor = part === 1 ? "end" : part === 0 ? "start" : "middle";
    const text = part === 1 ? "now" : duration(span * (1 - part)) + " ago";
    picture.append(svg("text", { x: x(at), y: height - 6, class: "tick", "text-anchor": anchor }, text));
  }
}

function describe(history, owners, span) {
  return `Timeline of ${plural(history.length, "hold", "holds")} by ${plural(owners.length, "owner", "owners")} in the last ${duration(span)}`;
}

const buckets = [
  [10, "< 10 ms"], [100, "< 100 ms"], [1000, "< 1 s"], [10000, "< 10 s"], [60000, "< 1 min"], [600000, "< 10 min"], [3600000, "< 1 h"], [Infinity, "≥ 1 h"],
];

// distribution shows durations as bars, with the median and the longest in words.
export function distribution(title, durations, none) {
  const box = make("section", "panel distribution", make("h3", "", title));
  if (durations.length === 0) {
    box.append(make("p", "muted", none));
    return box;
  }
  const sorted = [...durations].sort((a, b) => a - b);
  const at = (part) => duration(sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))]);
  box.append(make("p", "", make("strong", "", at(0.5)), " in the median, ", make("strong", "", at(0.9)), " at 90 %, ", make("strong", "", at(1)), " at most, of " + durations.length));
  box.append(bars(sorted));
  return box;
}

function bars(sorted) {
  const counts = buckets.map(() => 0);
  for (const d of sorted) counts[buckets.findIndex(([limit]) => d < limit)]++;
  const most = Math.max(...counts);
  const first = counts.findIndex((n) => n > 0);
  const last = counts.findLastIndex((n) => n > 0);
  const list = make("dl", "bars");
  for (let i = first; i <= last; i++) {
    const fill = make("span", "fill");
    fill.style.width = (100 * counts[i]) / most + "%";
    list.append(make("dt", "", buckets[i][1]), make("dd", "", make("span", "bar", fill), make("span", "n", String(counts[i]))));
  }
  return list;
}

// signOf marks a duration of which one end is not known.
function signOf(h) {
  if (h.unsure) return h.with_wait ? "~ " : "≥ ";
  return h.with_wait ? "≤ " : "";
}

// table lists the same holds as text.
export function table(history) {
  const body = make("tbody");
  for (const h of [...history].reverse().slice(0, 100)) {
    const held = h.since ? signOf(h) + duration((h.ended || now()) - h.since) : "–";
    body.append(make("tr", "", make("td", "", foreign(who(h))), make("td", "", h.purpose ? foreign(visible(h.purpose)) : "–"), make("td", "number", h.token || "–"),
      make("td", "number", held), make("td", "number", h.waited_ms === undefined ? "not seen" : duration(h.waited_ms)), make("td", "", h.ended ? new Date(h.ended).toLocaleTimeString() : "holds it")));
  }
  const head = make("tr", "", ...["Holder", "Purpose", "Token", "Held", "Waited", "Ended"].map((t) => attributes(make("th", "", t), { scope: "col" })));
  return make("details", "", make("summary", "", "The same as a table"), attributes(make("div", "scroll", make("table", "claims", make("thead", "", head), body)), { tabindex: "0", role: "region", "aria-label": "Recent holders" }));
}
