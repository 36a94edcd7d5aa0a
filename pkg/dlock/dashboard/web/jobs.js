// Leaders and jobs: what elections and scheduled jobs have stored as locks.
import { attributes, byId, foreign, link, make, write } from "./dom.js";
import { duration, linkTo, plural, visible, who } from "./format.js";
import { due, heldSince, since } from "./live.js";
import { amongRead, model, partial } from "./model.js";

const rank = { due: 0, running: 1, done: 2 };
const most = 500; // rows of a table

// found returns the elections, and the jobs with those first that need attention.
function found() {
  const leaders = [];
  const jobs = [];
  for (const lock of model.locks.values()) {
    if (lock.leader) leaders.push(lock);
    if (lock.job) jobs.push({ source: lock.source, ...lock.job });
  }
  leaders.sort((a, b) => compare(a.key, b.key));
  jobs.sort((a, b) => a.last.ok - b.last.ok || rank[a.state] - rank[b.state] || compare(a.key, b.key));
  return { leaders, jobs };
}

function compare(a, b) {
  return a === b ? 0 : a < b ? -1 : 1;
}

// refreshLink shows at the top how many there are, and how many jobs have failed.
export function refreshLink() {
  const { leaders, jobs } = found();
  const failed = jobs.filter((j) => !j.last.ok).length;
  const parts = [];
  if (leaders.length > 0) parts.push(plural(leaders.length, "leader", "leaders"));
  if (jobs.length > 0) parts.push(plural(jobs.length, "job", "jobs") + (failed > 0 ? " (" + failed.toLocaleString("en") + " failed)" : ""));
  const a = byId("jobs-link");
  write(a, parts.join(" · ") || "no leaders or jobs");
  a.hidden = parts.length === 0;
  a.classList.toggle("failed", failed > 0);
}

const drawn = {};

// refresh shows the tables anew if something has changed.
export function refresh() {
  if (byId("view-jobs").hidden) return;
  const { leaders, jobs } = found();
  part("jobs", jobs, jobTable);
  part("leaders", leaders.map(({ source, key, holders, leader, waiters }) => ({ source, key, leader, waiters, holder: steady(holders[0]) })), leaderTable);
}

// clear forgets the tables, also where they cannot be seen.
export function clear() {
  for (const name of ["jobs", "leaders"]) {
    delete drawn[name];
    byId(name + "-table").replaceChildren();
  }
}

// steady is a holder without its lease, which changes with every renewal.
function steady(holder) {
  if (!holder) return null;
  const { until, lease_ms, ...rest } = holder;
  return rest;
}

function part(name, data, table) {
  const now = JSON.stringify([data, partial()]);
  if (drawn[name] === now) return;
  drawn[name] = now;
  const box = byId(name + "-table");
  const focused = box.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  box.replaceChildren(...table(data));
  if (focused) [...box.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

function tableOf(label, heads, rows) {
  const head = make("tr", "", ...heads.map((t) => attributes(make("th", "", t), { scope: "col" })));
  const all = [attributes(make("div", "scroll", make("table", "claims", make("thead", "", head), make("tbody", "", ...rows.slice(0, most)))), { tabindex: "0", role: "region", "aria-label": label })];
  if (rows.length > most) all.push(make("p", "muted", "and " + plural(rows.length - most, "more", "more")));
  return all;
}

function keyCell(lock) {
  const cell = make("td", "key", link(linkTo(lock.source, lock.key), "", foreign(visible(lock.key))));
  if (model.sources.size > 1) cell.append(make("span", "from muted", visible(lock.source)));
  return cell;
}

function none() {
  return [make("p", "muted", partial() ? "None " + amongRead + "." : "None.")];
}

function leaderTable(leaders) {
  if (leaders.length === 0) return none();
  return tableOf("Leaders", ["Election", "Leader", "Value", "Term", "Leads for", "Candidates"], leaders.map((l) => {
    const h = l.holder;
    return make("tr", "", keyCell(l), make("td", h ? "" : "warn", h ? foreign(who(h)) : "no leader"), make("td", "", l.leader.value ? foreign(visible(l.leader.value)) : "–"),
      make("td", "number token", h?.token || "–"), make("td", "number", h ? heldSince(h) : "–"), make("td", "number", l.waiters === null ? "?" : String(l.waiters)));
  }));
}

function jobTable(jobs) {
  if (jobs.length === 0) return none();
  return tableOf("Jobs", ["Job", "Last run", "Ended", "Took", "By", "State", "Next due"], jobs.map((j) =>
    make("tr", j.last.ok ? "" : "failed", keyCell(j), resultCell(j.last), make("td", "number", since(j.last.ended), " ago"), make("td", "number", duration(j.last.took_ms)),
      make("td", "", foreign(who(j.last))), make("td", "", ...stateOf(j)), make("td", "number", nextDue(j)))));
}

function resultCell(run) {
  if (run.ok) return make("td", "", make("span", "badge ok", "ok"));
  return make("td", "result", make("span", "badge unsafe", "failed"), foreign(visible(run.error || "")));
}

// stateOf says what the job does now, as text and elements.
function stateOf(job) {
  if (job.state === "running") return ["runs for ", since(job.since), " by ", foreign(who(job.runner || {}))];
  return [job.state === "done" ? "has run" : make("strong", "warn", "due")];
}

// nextDue says from when on the next run may begin.
function nextDue(job) {
  if (job.state === "running") return "–";
  return job.due ? due(job.due) : "now";
}

// describe returns a panel about the election or the job of one lock, or nothing.
export function describe(d) {
  if (d.job) return aboutJob(d);
  if (d.role === "value") return [make("h3", "", "Election"), make("p", "", "This lock carries the value of the leader of ", baseLink(d, ":value"), ".")];
  if (!d.leader) return [];
  const line = make("p", "", "The holder leads, in term " + (d.token || "–") + ". ");
  if (d.holders.length === 0) line.replaceChildren("There is no leader at the moment. ");
  if (d.leader.value) line.append("It has published ", make("strong", "", foreign(visible(d.leader.value))), ". ");
  line.append(d.waiters === null ? "" : d.waiters === 0 ? "No candidate waits." : plural(d.waiters, "candidate waits.", "candidates wait."));
  return [make("h3", "", "Election"), line];
}

function baseLink(d, suffix) {
  const key = d.key.slice(0, -suffix.length);
  return link(linkTo(d.source, key), "key", foreign(visible(key)));
}

function aboutJob(d) {
  const { job } = d;
  const last = make("p", "", "The last run ", job.last.ok ? "succeeded" : make("strong", "error", "failed"), " after " + duration(job.last.took_ms) + " and ended ", since(job.last.ended), " ago, by ", foreign(who(job.last)));
  if (!job.last.ok) last.append(": ", make("strong", "error", foreign(visible(job.last.error || "no reason is known"))));
  last.append(".");
  const now = make("p", "");
  if (job.state === "running") now.append("It ", ...stateOf(job), ". If its process has died, the lock ends with its lease.");
  else if (job.state === "done") now.append("The next run is due ", job.due ? due(job.due) : "when the lock ends", ". Until then the lock stays taken, although nothing runs.");
  else now.append("It is due ", job.due ? due(job.due) : "now", ": the next process that schedules it runs it.");
  const all = [make("h3", "", "Job"), last, now];
  if (d.role === "runs") all.push(make("p", "", "This lock has the records of the job ", baseLink(d, ":runs"), "."));
  return [...all, ...tableOf("Runs", ["Last run", "Ended", "Took", "By"], d.runs.map((r) =>
    make("tr", "", resultCell(r), make("td", "number", since(r.ended), " ago"), make("td", "number", duration(r.took_ms)), make("td", "", foreign(who(r))))))];
}
