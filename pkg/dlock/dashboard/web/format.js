// How values are written for people. Everything that comes from a store is shown as text.

// Everything that cannot be seen, as lockreader.Hidden in Go: it is shown as an escape.
const hidden = /[\p{C}\p{Zl}\p{Zp}\uFFFD]|(?! )\p{Zs}/gu;
const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// visible returns text without anything that could hide or reorder other text.
export function visible(text) {
  return text.replace(hidden, (c) => {
    const code = c.codePointAt(0);
    if (short[c]) return short[c];
    if (code < 0x80) return "\\x" + code.toString(16).padStart(2, "0");
    return code > 0xffff ? "\\U" + code.toString(16).padStart(8, "0") : "\\u" + code.toString(16).padStart(4, "0");
  });
}

// duration writes milliseconds with two figures: 2h 3m, 14m 2s, 1.5 s.
export function duration(ms) {
  if (ms < 0) ms = 0;
  const s = ms / 1000;
  if (s < 1) return Math.round(ms) + " ms";
  if (s < 9.95) return s.toFixed(1) + " s";
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + "m " + Math.floor(s % 60) + "s";
  if (s < 86400) return Math.floor(s / 3600) + "h " + Math.floor((s % 3600) / 60) + "m";
  return Math.floor(s / 86400) + "d " + Math.floor((s % 86400) / 3600) + "h";
}

// running writes a duration that counts on the screen: whole seconds.
export function running(ms) {
  return ms < 60000 ? Math.max(0, Math.floor(ms / 1000)) + " s" : duration(ms);
}

// latency writes milliseconds that may be few.
export function latency(ms) {
  return ms < 1 ? ms.toFixed(2) + " ms" : ms < 10 ? ms.toFixed(1) + " ms" : duration(ms);
}

// who describes a claim: ann@web-1 pid 311.
export function who(claim) {
  let text = claim.owner || "";
  if (claim.host) text = text ? text + "@" + claim.host : claim.host;
  if (claim.pid) text += " pid " + claim.pid;
  return visible(text) || "an unnamed owner";
}

// modeOf describes how a lock is held: shared by 3, 2 of 5 permits.
export function modeOf(lock) {
  if (lock.mode === "shared") return "shared by " + lock.holder_count;
  if (lock.mode === "permit") return lock.holder_count + " of " + lock.limit + " permits";
  return lock.mode || "free";
}

export function plural(n, one, many) {
  return n.toLocaleString("en") + " " + (n === 1 ? one : many);
}

// linkTo returns the address of one lock on this page.
export function linkTo(source, key) {
  return "#/lock/" + encodeURIComponent(source) + "/" + encodeURIComponent(key);
}
