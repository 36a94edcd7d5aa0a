// Requests to the server. The token is kept in this tab, and is sent in a header: neither a cookie
// nor an address has it.

const tokenName = "dlock-token";
const challenge = 'Bearer realm="locks"'; // of this page's server; a proxy in front may have a login of its own
// The server sends a beat every five seconds. A connection that is silent for longer is dead, even
// if the browser has not noticed.
const longestSilence = 15000;

export function setToken(token) {
  if (token) sessionStorage.setItem(tokenName, token);
  else sessionStorage.removeItem(tokenName);
}

// canBeToken reports whether a header can carry a text, and so whether it can be the token.
export function canBeToken(text) {
  return /^[\x21-\x7e]+$/.test(text);
}

export function hasToken() {
  return sessionStorage.getItem(tokenName) !== null;
}

// A Refusal is an answer of the server that is not a success.
export class Refusal extends Error {
  constructor(status, body, asksToken) {
    super(body.text || "the server answered " + status);
    this.status = status;
    this.code = body.error || "";
    this.asksToken = asksToken;
  }
}

async function request(path, options = {}) {
  const token = sessionStorage.getItem(tokenName);
  const headers = { ...options.headers };
  if (token) headers.Authorization = "Bearer " + token;
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  const asksToken = answer.status === 401 && answer.headers.get("WWW-Authenticate") === challenge;
  if (!answer.ok) throw new Refusal(answer.status, await answer.json().catch(() => ({})), asksToken);
  return answer;
}

export async function getLock(source, key, signal) {
  const query = new URLSearchParams({ source, key });
  return (await request("api/v1/lock?" + query, { signal })).json();
}

export async function evict(source, key, token) {
  const body = JSON.stringify({ source, key, token, confirm: key });
  return (await request("api/v1/evict", { method: "POST", headers: { "Content-Type": "application/json" }, body })).json();
}

// stream calls on[event] with each event until the connection ends. It is no EventSource, because
// that cannot send the token.
export async function stream(on, signal) {
  const silence = new AbortController();
  const abort = () => silence.abort();
  let timer = setTimeout(abort, longestSilence);
  try {
    const answer = await request("api/v1/stream", { signal: AbortSignal.any([signal, silence.signal]) });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let parts = []; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(abort, longestSilence);
      parts = dispatchAll(on, parts, value);
    }
  } finally {
    clearTimeout(timer);
  }
}

// dispatchAll calls on with the events that value completes, and returns the parts of the next one.
// It joins parts only once, because an event can have megabytes.
function dispatchAll(on, parts, value) {
  const last = parts.at(-1);
  parts.push(value);
  if (!value.includes("\n\n") && !(last?.endsWith("\n") && value.startsWith("\n"))) return parts;
  const blocks = parts.join("").split("\n\n");
  const rest = blocks.pop();
  for (const block of blocks) dispatch(on, block);
  return rest ? [rest] : [];
}

function dispatch(on, block) {
  let event = "";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (on[event]) on[event](JSON.parse(data));
}
