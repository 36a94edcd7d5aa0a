// What the page knows: the sources and their locks.

export const model = {
  sources: new Map(), // name -> status with findings and own: the renewals and losses of the page's process
  locks: new Map(), // id -> lock
  rings: [],
  evict: false,
  interval: 1000,
  started: 0,
  maxLocks: 0,
  connected: false,
  offset: 0, // of the server's clock
};

// now is the time of the server, by the clock of this browser.
export function now() {
  return Date.now() + model.offset;
}

// syncClock keeps the difference of the clocks, unless it has changed by more than a delay can.
export function syncClock(serverNow) {
  const offset = serverNow - Date.now();
  if (Math.abs(offset - model.offset) > 300 || offset > model.offset) model.offset = offset;
}

export function idOf(source, key) {
  return source + "\n" + key;
}

export function greet(hello) {
  model.offset = hello.now - Date.now();
  model.evict = hello.evict;
  model.interval = hello.interval_ms;
  model.started = hello.started;
  model.maxLocks = hello.max_locks;
  const old = model.sources;
  model.sources = new Map(hello.sources.map((s) => [s.source, { ...s, findings: old.get(s.source)?.findings, own: old.get(s.source)?.own }]));
  for (const [id, lock] of model.locks) if (!model.sources.has(lock.source)) model.locks.delete(id);
}

// apply takes an update of one source over, and returns whether the list is another one.
export function apply(update) {
  syncClock(update.now);
  const { changed, removed, full, ...status } = update;
  const known = model.sources.get(update.source);
  model.sources.set(update.source, { ...status, findings: known?.findings, own: known?.own });
  if (full) {
    for (const [id, lock] of model.locks) if (lock.source === update.source) model.locks.delete(id);
  }
  for (const key of removed) model.locks.delete(idOf(update.source, key));
  for (const lock of changed) {
    lock.id = idOf(update.source, lock.key);
    lock.source = update.source;
    lock.text = searchText(lock);
    model.locks.set(lock.id, lock);
  }
  return full || removed.length > 0 || changed.length > 0 || update.more !== known?.more;
}

function searchText(lock) {
  const parts = [lock.key, lock.source, lock.mode, lock.error, lock.role, lock.leader?.value];
  for (const h of lock.holders) parts.push(h.owner, h.host, h.pid, h.purpose, h.token);
  return parts.join(" ").toLowerCase();
}

// partial reports whether a source has more locks than were read, and so more waiters, jobs or rings than are known.
export function partial() {
  return [...model.sources.values()].some((s) => s.more);
}

export const amongRead = "among the locks that were read";

// idles reports whether a lock is held for long by its nature: that of a leader, or of a job that does not run.
export function idles(lock) {
  if (lock.role !== "job") return Boolean(lock.role);
  return model.locks.get(idOf(lock.source, lock.key + ":runs"))?.job?.state !== "running";
}

const heldSince = (lock) => lock.holders[0]?.since || Infinity;
const leaseEnd = (lock) => lock.holders[0]?.until || Infinity;
const byNumber = (a, b) => (a === b ? 0 : a < b ? -1 : 1);
const byText = (of) => (a, b) => byNumber(of(a), of(b));
const byToken = (a, b) => byNumber((a.token || "").length, (b.token || "").length) || byNumber(a.token || "", b.token || "");

// The orders of the list. Each is the one that an operator wants first; the other way round is
// another click away.
export const orders = {
  waiting: {
    label: "waiting",
    compare: (a, b) => byNumber(b.waiters ?? -1, a.waiters ?? -1) || byNumber(a.waiting_since || Infinity, b.waiting_since || Infinity) || idles(a) - idles(b) || byNumber(heldSince(a), heldSince(b)),
    direction: "descending",
  },
  held: { label: "held for", compare: (a, b) => byNumber(heldSince(a), heldSince(b)), direction: "descending" },
  key: { label: "key", compare: byText((l) => l.key), direction: "ascending" },
  mode: { label: "mode", compare: byText((l) => l.mode || ""), direction: "ascending" },
  holder: { label: "holder", compare: byText((l) => (l.holders[0]?.owner || "") + "@" + (l.holders[0]?.host || "")), direction: "ascending" },
  lease: { label: "lease left", compare: (a, b) => byNumber(leaseEnd(a), leaseEnd(b)), direction: "ascending" },
  token: { label: "token", compare: (a, b) => byToken(b, a), direction: "descending" },
};

// select returns the locks that a filter lets through, in order.
export function select(filter) {
  const words = filter.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const lock of model.locks.values()) {
    if (filter.source && lock.source !== filter.source) continue;
    if (filter.prefix && !lock.key.startsWith(filter.prefix)) continue;
    if (filter.onlyWaited && !lock.waiters) continue;
    if (words.every((w) => lock.text.includes(w))) found.push(lock);
  }
  const { compare } = orders[filter.sort];
  const sign = filter.reversed ? -1 : 1;
  return found.sort((a, b) => sign * compare(a, b) || byNumber(a.id, b.id));
}

// best returns the first n locks by an order among those that count.
export function best(n, order, counts) {
  const top = [];
  const { compare } = orders[order];
  for (const lock of model.locks.values()) {
    if (!counts(lock)) continue;
    if (top.length === n && compare(lock, top[n - 1]) >= 0) continue;
    top.push(lock);
    top.sort(compare);
    top.length = Math.min(top.length, n);
  }
  return top;
}
