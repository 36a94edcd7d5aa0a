// The renewals and losses of the process that serves this page.
import { attributes, byId, foreign, link, make, write } from "./dom.js";
import { duration, linkTo, plural, visible } from "./format.js";
import { since } from "./live.js";
import { model, now } from "./model.js";

const lossMatters = 3600 * 1000; // how long a loss is worth a warning
const lateBelow = 0.25; // of a lease
const shown = 3; // losses at the top

const reasons = { not_renewed: "not renewed", taken_away: "taken away", max_hold: "held too long", unlocked_late: "unlocked late" };

// recentLosses returns the losses of a source that are worth a warning, the newest first.
export function recentLosses(s) {
  return (s.own?.last_losses || []).filter((l) => now() - l.at < lossMatters);
}

// isLate reports whether renewals fail, or are confirmed shortly before a lease ends.
export function isLate(s) {
  return Boolean(s.own) && (s.own.recent_failed_renewals > 0 || (s.own.least_slack !== null && s.own.least_slack < lateBelow));
}

// facts are the words for the line at the top.
export function facts(s) {
  const lost = recentLosses(s).length;
  const parts = [];
  if (lost > 0) parts.push(plural(lost, "lock", "locks") + " lost");
  if (s.own?.recent_failed_renewals > 0) parts.push(plural(s.own.recent_failed_renewals, "renewal", "renewals") + " failed");
  else if (isLate(s)) parts.push("renewals are late");
  return parts;
}

let banner = "";

// refreshLosses points out at the top what was lost in the last hour. The page about health says it anyway.
export function refreshLosses() {
  const all = [...model.sources.values()].flatMap((s) => recentLosses(s).map((l) => ({ ...l, source: s.source })));
  all.sort((a, b) => b.at - a.at);
  byId("losses").hidden = all.length === 0 || !byId("view-health").hidden;
  const drawn = JSON.stringify(all);
  if (drawn === banner) return;
  banner = drawn;
  const items = all.slice(0, shown).map((l) => make("li", "", lockLink(l), " ", since(l.at), " ago, held by ", foreign(visible(l.owner)), " for " + duration(l.hold_ms) + ": ", make("strong", "", reasons[l.reason] || l.reason)));
  if (all.length > shown) items.push(make("li", "", link("#/health", "", "and " + plural(all.length - shown, "more", "more"))));
  redraw(byId("losses-list"), items);
}

function lockLink(l) {
  return link(linkTo(l.source, l.key), "key", foreign(visible(l.key)));
}

// redraw replaces children, and keeps the focus on the same link.
function redraw(box, children) {
  const focused = box.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  box.replaceChildren(...children);
  if (focused) [...box.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

// panel returns an empty part of the page about health, which fill fills.
export function panel() {
  return make("div", "own", make("h4", "", "Renewals and losses of the process that serves this page"), make("p", "renewals"), make("p", "slack"), make("div", "lost"), make("p", "muted elsewhere"));
}

// fill shows what a source has told. Elements stay, so that a selection of text is not lost.
export function fill(box, s) {
  const own = s.own;
  box.hidden = !own;
  if (!own) return;
  const seen = own.renewals + own.failed_renewals > 0 || Object.values(own.losses).some((n) => n > 0);
  const [, renewals, slack, lost, elsewhere] = box.children;
  renewals.hidden = slack.hidden = lost.hidden = !seen;
  const span = plural(Math.round(own.window_ms / 60000), "minute", "minutes");
  write(renewals, own.recent_failed_renewals > 0
    ? plural(own.recent_failed_renewals, "renewal", "renewals") + " of " + (own.recent_renewals + own.recent_failed_renewals).toLocaleString("en") + " failed in the last " + span + ": " + visible(own.recent_error || "")
    : plural(own.recent_renewals, "renewal", "renewals") + " in the last " + span + ", none failed.");
  renewals.classList.toggle("warn", own.recent_failed_renewals > 0);
  write(slack, own.least_slack === null
    ? "No lock was renewed in the last " + span + "."
    : "Least slack in the last " + span + ": " + Math.round(100 * own.least_slack) + " % of the lease was left when " + visible(own.least_slack_key) + " was renewed" + (own.least_slack < lateBelow ? ". Below " + 100 * lateBelow + " %, locks are about to be lost: the backend or the network is slow, or this process lacks CPU." : "."));
  slack.classList.toggle("warn", own.least_slack !== null && own.least_slack < lateBelow);
  fillLosses(lost, s);
  write(elsewhere, (seen ? "Only locks of this process are counted here. " : "This process has renewed and lost no lock here. Renewals and losses are seen only where the locks are held. ") +
    "For the others, look at /metrics of the service that holds them (dlock_renewal_slack_seconds, dlock_losses_total), at its log line \u201cownership lost\u201d, and at the alerts DlockLossesGrow and DlockRenewalsAreLate.");
}

const total = (own) => Object.values(own.losses).reduce((a, b) => a + b, 0);

function fillLosses(box, s) {
  const drawn = JSON.stringify([s.own.losses, s.own.last_losses]);
  if (box.dataset.drawn === drawn) return;
  box.dataset.drawn = drawn;
  const { last_losses: losses } = s.own;
  if (losses.length === 0) return box.replaceChildren(make("p", "", "No lock was lost."));
  const head = make("tr", "", ...["Lock", "Lost", "Why", "Holder", "Held for", "Token"].map((t) => attributes(make("th", "", t), { scope: "col" })));
  const rows = losses.map((l) => make("tr", "", make("td", "key", lockLink({ ...l, source: s.source })), make("td", "number", since(l.at), " ago"),
    make("td", "why", make("span", "badge unsafe", reasons[l.reason] || l.reason), visible(l.cause)), make("td", "", foreign(visible(l.owner))), make("td", "number", duration(l.hold_ms)), make("td", "number token", l.token)));
  const table = attributes(make("div", "scroll", make("table", "claims", make("thead", "", head), make("tbody", "", ...rows))), { tabindex: "0", role: "region", "aria-label": "Lost locks of " + visible(s.source) });
  const more = total(s.own) - losses.length;
  redraw(box, [table, more > 0 ? make("p", "muted", "and " + plural(more, "earlier loss", "earlier losses")) : ""]);
}
