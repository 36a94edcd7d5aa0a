// The list of locks. Only the rows that can be seen are elements, so thousands of locks stay
// smooth. All rows have the same height.
import { attributes, byId, foreign, link, make, write } from "./dom.js";
import { linkTo, modeOf, plural, visible, who } from "./format.js";
import { lease, setHeldSince, setLease, setSince, since } from "./live.js";
import { amongRead, best, idles, model, orders, partial, select } from "./model.js";

const filter = { search: "", prefix: "", source: "", sort: "waiting", reversed: false, onlyWaited: false };
const columns = [
  ["key", "Lock"], ["mode", "Mode"], ["holder", "Holder"], ["held", "Held"], ["lease", "Lease left"], ["token", "Token"], ["waiting", "Waiting"],
];
const roles = { leader: "leader", value: "value", job: "job", runs: "records" };
const roleTitles = { leader: "the lock of an election", value: "carries the value of a leader", job: "the lock of a scheduled job", runs: "the records of a scheduled job" };
const spare = 8; // rows above and below the screen

let shown = []; // the locks of the list, in order
let drawn = new Map(); // id -> element of a row on the screen
let active = null; // the id of the row that the keyboard is at

export function start() {
  for (const [name, title] of columns) byId("columns").append(columnHeader(name, title));
  for (const [name, order] of Object.entries(orders)) {
    const option = make("option", "", order.label);
    option.value = name;
    byId("sort").append(option);
  }
  onChange("search", "input", (e) => (filter.search = e.value));
  onChange("prefix", "input", (e) => (filter.prefix = e.value));
  onChange("source", "change", (e) => (filter.source = e.value));
  onChange("only-waited", "change", (e) => (filter.onlyWaited = e.checked));
  onChange("sort", "change", (e) => sortBy(e.value, false));
  byId("filters").addEventListener("submit", (e) => e.preventDefault());
  byId("rows").addEventListener("keydown", move);
  byId("rows").addEventListener("focusin", (e) => activate(e.target.closest("[data-id]")?.dataset.id ?? null));
  window.addEventListener("scroll", draw, { passive: true });
  window.addEventListener("resize", draw);
  showSort();
}

function onChange(id, event, set) {
  byId(id).addEventListener(event, () => {
    set(byId(id));
    refresh();
  });
}

function columnHeader(name, title) {
  const button = make("button", "", title);
  button.type = "button";
  button.addEventListener("click", () => {
    sortBy(name, filter.sort === name && !filter.reversed);
    refresh();
  });
  return attributes(make("span", "cell c-" + name, button), { role: "columnheader", "data-sort": name });
}

function sortBy(name, reversed) {
  filter.sort = name;
  filter.reversed = reversed;
  showSort();
}

function showSort() {
  byId("sort").value = filter.sort;
  for (const head of byId("columns").children) {
    const name = head.dataset.sort;
    let direction = "none";
    if (name === filter.sort) {
      direction = orders[name].direction;
      if (filter.reversed) direction = direction === "ascending" ? "descending" : "ascending";
    }
    head.setAttribute("aria-sort", direction);
  }
}

// refresh shows the list anew after the locks or the filter have changed.
export function refresh() {
  if (byId("view-list").hidden) return;
  const using = byId("rows").contains(document.activeElement);
  const place = using ? Math.max(0, shown.findIndex((l) => l.id === active)) : 0; // of a lock that was released
  shown = select(filter);
  if (!shown.some((l) => l.id === active)) active = shown[Math.min(place, shown.length - 1)]?.id ?? null;
  write(byId("count"), countText());
  byId("table").setAttribute("aria-rowcount", shown.length + 1);
  const none = partial() ? "None " + amongRead + "." : "";
  showTop(byId("waited"), best(3, "waiting", (l) => l.waiters > 0), none || "No lock has waiters.");
  showTop(byId("longest"), best(3, "held", (l) => l.holders[0]?.since && !idles(l)), none || "No lock is held, apart from those of leaders and jobs.");
  draw();
}

// clear forgets the locks, also where they cannot be seen.
export function clear() {
  for (const e of drawn.values()) e.remove();
  drawn.clear();
  shown = [];
  active = null;
  for (const id of ["waited", "longest", "prefixes"]) {
    byId(id).replaceChildren();
    delete byId(id).dataset.empty;
  }
  write(byId("count"), "");
  refreshSources();
}

function countText() {
  const total = model.locks.size;
  let text = shown.length === total ? plural(total, "lock", "locks") : shown.length.toLocaleString("en") + " of " + plural(total, "lock", "locks");
  const more = [...model.sources.values()].filter((s) => s.more).map((s) => visible(s.source));
  if (more.length > 0) text += "; there are more on " + more.join(", ") + ": " + model.maxLocks.toLocaleString("en") + " of them are read";
  return text;
}

// refreshSources offers the sources and the most frequent prefixes in the filter.
export function refreshSources() {
  const select = byId("source");
  const names = [...model.sources.keys()];
  const known = [...select.options].slice(1).map((o) => o.value);
  select.closest("p").hidden = names.length < 2;
  byId("table").classList.toggle("several", names.length > 1);
  if (names.join("\n") === known.join("\n")) return;
  select.replaceChildren(select.options[0]);
  for (const name of names) {
    const option = make("option", "", visible(name));
    option.value = name;
    select.append(option);
  }
  select.value = names.includes(filter.source) ? filter.source : "";
  filter.source = select.value;
}

export function refreshPrefixes() {
  const counts = new Map();
  for (const lock of model.locks.values()) {
    const end = lock.key.search(/[:/.]/);
    if (end <= 0) continue;
    const prefix = lock.key.slice(0, end + 1);
    if (prefix !== visible(prefix)) continue; // the browser would show it as it is
    counts.set(prefix, (counts.get(prefix) || 0) + 1);
  }
  const top = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 20);
  byId("prefixes").replaceChildren(...top.map(([prefix, n]) => {
    const option = make("option");
    option.value = prefix;
    option.label = plural(n, "lock", "locks");
    return option;
  }));
}

// showTop shows the few locks that matter most. It keeps elements, so that focus stays.
function showTop(ol, locks, none) {
  while (ol.children.length > Math.max(1, locks.length)) ol.lastChild.remove();
  if (locks.length === 0) {
    if (ol.dataset.empty !== "yes") ol.replaceChildren(make("li", "muted"));
    write(ol.firstChild, none);
    ol.dataset.empty = "yes";
    return;
  }
  if (ol.dataset.empty === "yes") ol.replaceChildren();
  ol.dataset.empty = "no";
  locks.forEach((lock, i) => {
    if (!ol.children[i]) ol.append(topItem());
    fillTop(ol.children[i], lock, ol.id);
  });
}

function topItem() {
  return make("li", "", link("#/", "key", foreign("")), make("span", "fact"), make("span", "holder muted"));
}

function fillTop(li, lock, list) {
  const [key, fact, holder] = li.children;
  key.href = linkTo(lock.source, lock.key);
  write(key.firstChild, visible(lock.key));
  key.title = visible(lock.key);
  const first = lock.holders[0];
  write(holder, first ? "held by " + who(first) + (first.purpose ? " (" + visible(first.purpose) + ")" : "") : "free");
  if (list === "waited") return write(fact, lock.waiters + " waiting");
  if (!fact.firstElementChild) fact.append(since(0));
  setHeldSince(fact.firstElementChild, first);
}

// draw shows the rows that can be seen.
export function draw() {
  const rows = byId("rows");
  if (byId("view-list").hidden) return;
  const height = rowHeight();
  rows.style.height = shown.length * height + "px";
  const top = rows.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(-top / height) - spare);
  const last = Math.min(shown.length, Math.ceil((window.innerHeight - top) / height) + spare);
  const wanted = new Map();
  for (let i = first; i < last; i++) wanted.set(shown[i].id, i);
  const focused = document.activeElement?.closest?.("[data-id]")?.dataset.id;
  const kept = focused ? shown.findIndex((l) => l.id === focused) : -1;
  if (kept >= 0) wanted.set(focused, kept); // or the keyboard would lose its place
  for (const [id, e] of drawn) {
    if (wanted.has(id)) continue;
    e.remove();
    drawn.delete(id);
  }
  for (const [id, i] of wanted) {
    let e = drawn.get(id);
    if (!e) {
      e = newRow();
      drawn.set(id, e);
      rows.append(e);
    }
    fill(e, shown[i], i, height);
  }
  if (focused && kept < 0) focusActive(); // its lock was released
}

// focusActive sets the focus to the row that the keyboard is at, if it can be seen.
export function focusActive() {
  const target = drawn.get(active)?.querySelector("a") ?? byId("main");
  target.focus({ preventScroll: true });
}

// enter begins to move through the list.
export function enter() {
  const at = shown.findIndex((l) => l.id === active);
  if (at >= 0) focusRow(at);
}

function rowHeight() {
  return parseFloat(getComputedStyle(byId("rows")).getPropertyValue("--row")) || 44;
}

function cell(name, ...children) {
  return attributes(make("span", "cell c-" + name, ...children), { role: "cell" });
}

function newRow() {
  const key = link("#/", "", foreign(""));
  return attributes(make("div", "row",
    cell("key", key, make("span", "role"), make("span", "from muted")), cell("mode"), cell("holder", foreign(""), make("span", "purpose muted")),
    cell("held", since(0)), cell("lease", lease()), cell("token"), cell("waiting", make("span", "count"), since(0, "muted"))), { role: "row" });
}

// fill shows a lock in a row, and changes only what differs.
function fill(e, lock, index, height) {
  e.style.transform = "translateY(" + index * height + "px)";
  e.querySelector("a").tabIndex = lock.id === active ? 0 : -1;
  if (e.lock === lock && e.dataset.id === lock.id) {
    e.setAttribute("aria-rowindex", index + 2);
    return;
  }
  e.lock = lock;
  attributes(e, { "data-id": lock.id, "aria-rowindex": index + 2 });
  const [key, mode, holder, held, left, token, waiting] = e.children;
  const first = lock.holders[0];
  key.firstChild.href = linkTo(lock.source, lock.key);
  write(key.firstChild.firstChild, visible(lock.key));
  key.title = visible(lock.key);
  write(key.children[1], roles[lock.role] || "");
  key.children[1].hidden = !lock.role;
  key.children[1].title = roleTitles[lock.role] || "";
  write(key.lastChild, visible(lock.source));
  write(mode, lock.error ? "?" : modeOf(lock));
  fillHolder(holder, lock, first);
  setHeldSince(held.firstChild, first);
  setLease(left.firstChild, first, model.sources.get(lock.source)?.backend);
  left.hidden = !first;
  write(token, lock.token || "–");
  fillWaiting(waiting, lock);
  e.classList.toggle("waited", lock.waiters > 0);
}

function fillHolder(holder, lock, first) {
  let name = first ? who(first) : "–";
  if (lock.holder_count > 1) name += " and " + (lock.holder_count - 1) + " more";
  if (lock.error) name = visible(lock.error);
  write(holder.firstChild, name);
  write(holder.lastChild, first?.purpose ? visible(first.purpose) : "");
  holder.title = name + (first?.purpose ? " (" + visible(first.purpose) + ")" : "");
  holder.classList.toggle("error", Boolean(lock.error));
}

function fillWaiting(waiting, lock) {
  const [count, longest] = waiting.children;
  write(count, lock.waiters === null ? "?" : String(lock.waiters));
  count.title = lock.waiters === null ? "this backend does not know its waiters" : "";
  longest.hidden = !lock.waiters;
  setSince(longest, lock.waiting_since);
}

// move goes from row to row with the keyboard.
function move(event) {
  const at = shown.findIndex((l) => l.id === active);
  const page = Math.max(1, Math.floor(window.innerHeight / rowHeight()) - 2);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1, PageDown: at + page, PageUp: at - page }[event.key];
  if (to === undefined || shown.length === 0 || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  focusRow(Math.max(0, Math.min(shown.length - 1, to)));
}

function focusRow(index) {
  const height = rowHeight();
  const rows = byId("rows").getBoundingClientRect();
  const top = rows.top + index * height;
  const above = document.querySelector(".top").offsetHeight + height;
  if (top < above) window.scrollBy({ top: top - above });
  else if (top + 2 * height > window.innerHeight) window.scrollBy({ top: top + 2 * height - window.innerHeight });
  activate(shown[index].id);
  draw();
  drawn.get(active)?.querySelector("a").focus({ preventScroll: true });
}

function activate(id) {
  if (id === null) return;
  active = id;
  for (const [other, e] of drawn) e.querySelector("a").tabIndex = other === id ? 0 : -1;
}

export function focusSearch() {
  byId("search").focus();
  byId("search").select();
}
