// The dialog that takes a lock away from its holder.
import { evict } from "./api.js";
import { byId, foreign } from "./dom.js";
import { visible, who } from "./format.js";

const longestTyped = 80;
let victim = null; // { source, key, token, expected, sent }; null while the dialog is closed
let done = () => {};

// ask opens the dialog for a holder that the page shows. The token goes with the request: if the
// lock has passed on since, the server changes nothing. The key does not tell several holders apart,
// so then the user types the token.
export function ask(source, key, holder, several) {
  const plain = key === visible(key) && key.length <= longestTyped;
  const typed = plain && !several;
  victim = { source, key, token: holder.token, expected: typed ? key : holder.token };
  byId("evict-who").replaceChildren(foreign(visible(key), "key"), " is held by ", foreign(who(holder)), ", token " + holder.token + ".");
  const why = plain ? "the lock has several holders" : "the key is too long, or cannot be typed";
  byId("evict-label").replaceChildren(typed ? "Type the key to confirm" : "Type the token to confirm: " + why);
  byId("evict-confirm").value = "";
  byId("evict-error").textContent = "";
  check();
  byId("evict").showModal();
  byId("evict-confirm").focus();
}

export function start(finished) {
  done = finished;
  byId("evict-confirm").addEventListener("input", check);
  byId("evict-cancel").addEventListener("click", () => byId("evict").close());
  byId("evict").addEventListener("close", () => {
    if (!byId("evict").open) victim = null;
  });
  byId("evict-form").addEventListener("submit", (e) => {
    e.preventDefault();
    if (!byId("evict-do").disabled) send();
  });
}

// clear forgets the holder.
export function clear() {
  byId("evict").close();
  byId("evict-who").replaceChildren();
}

function check() {
  byId("evict-do").disabled = !victim || victim.sent || byId("evict-confirm").value !== victim.expected;
}

// send asks the server. The user may close the dialog meanwhile, and open it for another holder: then
// the result is only told.
async function send() {
  const sent = victim;
  const { source, key, token } = sent;
  sent.sent = true;
  check();
  byId("evict-error").textContent = "";
  try {
    await evict(source, key, token);
    if (victim === sent) byId("evict").close();
    done(source, "Evicted the holder with token " + token + ".");
  } catch (err) {
    if (victim !== sent) return done(source, "The eviction of the holder with token " + token + " failed: " + err.message);
    byId("evict-error").textContent = err.message;
    sent.sent = false;
    check();
  }
}
