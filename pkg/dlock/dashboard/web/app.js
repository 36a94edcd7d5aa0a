// The page: it follows the stream of the server, and shows the view that its address names.
import { canBeToken, hasToken, setToken, stream } from "./api.js";
import { byId, write } from "./dom.js";
import * as evict from "./evict.js";
import { running, visible } from "./format.js";
import * as health from "./health.js";
import * as jobs from "./jobs.js";
import * as list from "./list.js";
import { tickAll } from "./live.js";
import * as lock from "./lock.js";
import { amongRead, apply, greet, model, now, partial, syncClock } from "./model.js";
import * as own from "./own.js";

const retryFirst = 500;
const retryLongest = 5000;
let problem = ""; // what the server last refused
let notice = ""; // what the user has done
let scrolled = 0; // of the list, while another view is shown
let loggedOut = false;
let shownBefore = false; // the list

// ---- views

function route() {
  const [, view, source, key] = location.hash.split("/");
  const wasList = !byId("view-list").hidden;
  if (wasList) scrolled = window.scrollY;
  const shows = loggedOut ? "login" : view === "lock" && key !== undefined ? "lock" : view === "health" || view === "jobs" ? view : "list";
  byId("login").hidden = shows !== "login";
  for (const name of ["list", "lock", "health", "jobs"]) byId("view-" + name).hidden = name !== shows;
  byId("rings").classList.toggle("brief", shows !== "list"); // which pushes the view down
  lock.close();
  own.refreshLosses();
  if (shows === "list") {
    document.title = "Locks";
    list.refresh();
    window.scrollTo(0, scrolled);
    list.draw();
    if (!wasList && shownBefore) list.focusActive();
    shownBefore = true;
    return;
  }
  window.scrollTo(0, 0);
  if (shows === "login") {
    document.title = "Locks";
    return byId("login-token").focus();
  }
  if (shows === "health") {
    document.title = "Health of the backends";
    health.refreshPage();
    return;
  }
  if (shows === "jobs") {
    document.title = "Leaders and jobs";
    jobs.refresh();
    return;
  }
  const names = [source, key].map(decode);
  document.title = visible(names[1]) + " – lock";
  lock.show(...names, failed, succeeded);
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that was typed
  }
}

// ---- the stream

let redraw = false;
let locksChanged = false;

// changed draws at most once per frame, however many events arrive. If no lock has changed, thousands of
// them need not be sorted again.
function changed(locks) {
  locksChanged ||= locks;
  if (redraw) return;
  redraw = true;
  requestAnimationFrame(() => {
    redraw = false;
    health.refreshLine();
    list.refreshSources();
    for (const e of document.querySelectorAll(".partial")) write(e, partial() ? " " + amongRead : "");
    if (locksChanged) {
      list.refresh();
      jobs.refreshLink();
      jobs.refresh();
    }
    locksChanged = false;
    status();
  });
}

const events = {
  hello(h) {
    greet(h);
    model.connected = true;
    problem = "";
    changed(true);
  },
  update(u) {
    const locks = apply(u);
    lock.refresh(u.source);
    health.refreshPage();
    changed(locks);
  },
  findings(f) {
    const s = model.sources.get(f.source);
    if (s) s.findings = f.findings;
    health.refreshPage();
    changed(false);
  },
  own_locks(o) {
    const s = model.sources.get(o.source);
    if (s) s.own = o.own_locks;
    own.refreshLosses();
    health.refreshPage();
    changed(false);
  },
  rings(r) {
    model.rings = r.rings;
    health.refreshRings();
  },
  beat(b) {
    syncClock(b.now);
  },
};

let following = null;

async function follow() {
  following?.abort();
  const mine = (following = new AbortController());
  for (let pause = retryFirst; !mine.signal.aborted; pause = Math.min(2 * pause, retryLongest)) {
    try {
      await stream({ ...events, hello: (h) => ((pause = retryFirst), events.hello(h)) }, mine.signal);
      problem = "";
    } catch (err) {
      if (mine.signal.aborted) return;
      if (failed(err)) return;
    }
    model.connected = false;
    status();
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// failed shows an error of the server. It returns true if trying again makes no sense.
function failed(err) {
  if (err.asksToken) {
    if (!loggedOut) logOut(hasToken() ? "The token is wrong, or no longer valid." : "");
    return true;
  }
  problem = err.status ? err.message : "";
  status();
  return false;
}

// succeeded removes the error that an answer has made untrue.
function succeeded() {
  problem = "";
  status();
}

// ---- login

function logOut(text) {
  setToken("");
  following?.abort();
  loggedOut = true;
  model.connected = false;
  model.locks.clear();
  model.sources.clear();
  model.rings = [];
  health.refreshRings();
  own.refreshLosses();
  health.refreshLine();
  jobs.refreshLink();
  for (const view of [list, lock, health, jobs, evict]) view.clear();
  byId("login-error").textContent = text;
  status();
  route();
}

function logIn(event) {
  event.preventDefault();
  const token = byId("login-token").value.trim();
  byId("login-token").value = "";
  byId("login-error").textContent = canBeToken(token) ? "" : "The token is wrong: it has characters that no token has.";
  if (!canBeToken(token)) return byId("login-token").focus();
  setToken(token);
  loggedOut = false;
  route();
  follow();
}

// ---- the line of the connection

function status() {
  const late = [...model.sources.values()].filter((s) => health.isLate(s, now()));
  let text = notice || problem;
  let bad = !notice && problem !== "";
  if (loggedOut) {
    text = "not logged in";
  } else if (!model.connected) {
    text = problem || "no connection to the server of this page; trying again";
    bad = true;
  } else if (late.length > 0) {
    text = late.map((s) => visible(s.source) + " was last read " + running(now() - s.at) + " ago").join("; ");
    bad = true;
  }
  write(byId("connection"), text);
  byId("connection").classList.toggle("bad", bad);
  document.body.classList.toggle("stale", !model.connected);
}

// ---- keys

function shortcut(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || byId("evict").open) return;
  const typing = /^(input|select|textarea)$/i.test(event.target.tagName);
  if (event.key === "/" && !typing && !byId("view-list").hidden) {
    event.preventDefault();
    list.focusSearch();
  }
  const idle = event.target === document.body || event.target === byId("main");
  if (!byId("view-list").hidden && (idle ? /^(Arrow(Up|Down)|Home|End)$/ : /^ArrowDown$/).test(event.key) && (idle || event.target === byId("search"))) {
    event.preventDefault();
    list.enter();
  }
  if (event.key === "Escape" && byId("view-list").hidden && !loggedOut) location.hash = "#/";
}

list.start();
evict.start((source, text) => {
  notice = text;
  status();
  setTimeout(() => ((notice = ""), status()), 5000);
  lock.refresh(source);
});
byId("login-form").addEventListener("submit", logIn);
window.addEventListener("hashchange", route);
document.addEventListener("keydown", shortcut);
setInterval(() => {
  tickAll();
  own.refreshLosses(); // which end after an hour
  status();
}, 1000);
setInterval(list.refreshPrefixes, 5000);
route();
follow();
