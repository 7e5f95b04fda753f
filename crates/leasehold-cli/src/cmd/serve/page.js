"use strict";
// The page of `leasehold serve`: the locks of a server, as its stream tells them each second, and one of them in a panel.
// Names, owners and labels are written by any client of that server: they reach the page by `write` alone, as text.

const $ = (id) => document.getElementById(id);

// ---- Words, the same as the command's

const KINDS = {
  mutex: "mutex", fenced_mutex: "fenced", rw_lock: "rw", leased_semaphore: "leased", semaphore: "semaphore",
  latch: "latch", plain_mutex: "plain", spin_mutex: "spin", fair_mutex: "fair",
};
const OWNED = new Set(["mutex", "fenced_mutex", "rw_lock", "plain_mutex", "spin_mutex", "fair_mutex"]); // have holders that can be compared
const NONE = "–";
const NAME_MOST = 80; // columns of a name in the table

const number = new Intl.NumberFormat("en").format;
const some = (n, word, words = word + "s") => `${number(n)} ${n === 1 ? word : words}`;
const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);
const utc = (ms) => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");

/** A duration: two units at most, and tenths only where they matter. */
function human(ms) {
  const s = Math.max(0, ms) / 1000;
  const whole = Math.floor(s);
  const two = (unit, above, below, word) => `${Math.floor(whole / unit)} ${above} ${Math.floor((whole % unit) / below)} ${word}`;
  if (s < 10) return `${(Math.floor(s * 10) / 10).toFixed(1)} s`;
  if (s < 60) return `${whole} s`;
  if (s < 3600) return two(60, "min", 1, "s");
  if (s < 86400) return two(3600, "h", 60, "min");
  return two(86400, "d", 3600, "h");
}

// ---- Text that others wrote

/** Letters that are not seen, or that move the letters around them: of control, of direction, without a shape, other spaces. */
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}\p{DI}\u2800]|(?! )\p{Zs}/u;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

function escaped(letter) {
  const hex = letter.codePointAt(0).toString(16);
  return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, "0")}`;
}

/** Its letters; an escape counts as one, the only one that is longer than 2. */
const shown = (text) => Array.from(text, (letter) => (UNSEEN.test(letter) ? escaped(letter) : letter));
const visible = (text) => shown(text).join("");

/** The letters that fit into so many columns: the beginning, dots, the end. */
function cut(letters, most) {
  const width = (letter) => (letter.length > 2 ? letter.length : WIDE.test(letter) ? 2 : 1);
  const fitting = (some, room) => {
    let count = 0;
    while (count < some.length && (room -= width(some[count])) >= 0) count += 1;
    return count;
  };
  if (fitting(letters, most) === letters.length) return letters;
  const head = fitting(letters, Math.ceil(most * 0.6));
  const tail = fitting(letters.slice(head).reverse(), Math.floor(most * 0.4) - 1);
  return [...letters.slice(0, head), "…", ...letters.slice(letters.length - tail)];
}

/** The only way by which text gets into the page. An escape has a colour, so that no name can pretend one. */
function write(node, text, most = Infinity) {
  if (node.wrote === text) return;
  node.wrote = text;
  node.textContent = "";
  if (text.length * 2 <= most && !UNSEEN.test(text)) {
    node.textContent = text;
    return;
  }
  for (const letter of cut(shown(text), most)) {
    const type = letter.length > 2 ? "esc" : "";
    if (node.lastChild?.className !== type) node.append(document.createElement("span"));
    node.lastChild.className = type;
    node.lastChild.textContent += letter;
  }
}

const say = (id, text) => write($(id), text);

// ---- Elements that keep their identity: focus, selection and scrolling survive an update

/** An element as it shall be: `text`, or others inside; `key` finds it again; `fill` is how full a bar is. */
const h = (tag, is = {}, ...inside) => ({ tag, is, inside: inside.flat(2).filter(Boolean) });
const span = (type, text, most) => h("span", { class: type, text, most });
const OWN = new Set(["key", "text", "most", "fill", "lock"]);

function update(node, { is, inside }) {
  for (const name of Object.keys(node.is || {})) if (!OWN.has(name) && is[name] == null) node.removeAttribute(name);
  for (const [name, value] of Object.entries(is)) {
    if (!OWN.has(name) && value != null && node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  node.is = is;
  node.key = is.key;
  node.lock = is.lock;
  if (is.fill != null) node.style.transform = `scaleX(${Math.min(1, Math.max(0, is.fill)).toFixed(3)})`;
  if (is.text != null) return write(node, is.text, is.most);
  if (node.wrote != null) node.textContent = "";
  node.wrote = null;
  patch(node, inside);
}

function patch(parent, wanted) {
  if (!wanted.length && !parent.firstChild) return;
  const keys = new Set(wanted.map((want) => want.is.key));
  const known = new Map();
  for (const node of [...parent.children]) {
    if (node.key == null) continue;
    if (keys.has(node.key)) known.set(node.key, node);
    else node.remove();
  }
  const focused = document.activeElement;
  let at = parent.firstElementChild;
  for (const want of wanted) {
    const isThere = at && at.key == null && want.is.key == null && at.localName === want.tag;
    let node = isThere ? at : known.get(want.is.key);
    known.delete(want.is.key);
    if (node && node === at) at = at.nextElementSibling;
    else if (node && parent.moveBefore) parent.moveBefore(node, at);
    else parent.insertBefore((node ||= document.createElement(want.tag)), at);
    update(node, want);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

// ---- State

/** The tokens, kept for this tab; a browser may forbid even that. */
let tokens = {};
try { tokens = sessionStorage; } catch { /* they are asked for again after a reload */ }

let view = {}; // what the address says: lock, of, search, kind, waited, gone, sort
let list = null; // the last event about all locks
let one = null; // the last event about the lock in the panel
let scales = new Map(); // the length of each lease, as far as it was seen

const FILTERS = ["search", "kind", "waited", "gone"];
const VIEW = [...FILTERS, "sort", "lock", "of"];
const keyOf = (name, kind) => `${kind}\0${name}`;

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const name of ["token", "unlock"]) if (said.get(name)) tokens[name] = said.get(name);
  view = Object.fromEntries(VIEW.map((name) => [name, said.get(name) || ""]));
  view.sort ||= "name";
  if (said.has("token") || said.has("unlock")) history.replaceState(null, "", address(view));
}

function address(of) {
  const says = new URLSearchParams(VIEW.filter((name) => of[name] && !(name === "sort" && of.sort === "name")).map((name) => [name, of[name]]));
  return `${location.pathname}${says.size ? `#${says}` : ""}`;
}

// ---- Streams

/** Follows a stream until it is closed: reads it with fetch, which can send the token, and connects again. */
class Stream {
  constructor(query, tell, down) {
    Object.assign(this, { query, tell, down, isClosed: false, tries: 0, at: performance.now() });
    this.follow();
  }

  close() {
    this.isClosed = true;
    this.abort?.abort();
  }

  async follow() {
    while (!this.isClosed) {
      let why;
      try {
        why = await this.read();
      } catch (error) {
        this.abort.abort();
        why = error instanceof TypeError || error.name === "AbortError" ? "leasehold serve does not answer" : error.message;
      }
      if (this.isClosed) return;
      this.tries += 1;
      this.down(why, this.tries);
      await new Promise((resolve) => setTimeout(resolve, Math.min(this.tries, 5) * 1000));
    }
  }

  async read() {
    this.abort = new AbortController();
    this.at = performance.now();
    const token = tokens.token;
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch(`/live?${this.query}`, { headers, signal: this.abort.signal, cache: "no-store" });
    if (answer.status === 401) {
      this.close();
      askForToken(token ? "The server does not accept this token." : "");
      return "";
    }
    if (!answer.ok) throw new Error((await errorOf(answer)).error);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this.isClosed) return "the connection has ended";
      const parts = (text + value).split(/\r?\n\r?\n/);
      text = parts.pop();
      for (const part of parts) this.event(part);
    }
  }

  event(part) {
    const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5));
    if (this.isClosed || !data.length) return;
    this.at = performance.now();
    this.tries = 0;
    const event = JSON.parse(data.join("\n"));
    event.at = this.at;
    this.tell(event);
  }

  /** A connection over which nothing comes is no connection. */
  watch() {
    const silent = performance.now() - this.at;
    if (silent > 20000) this.abort?.abort();
    else if (silent > 4000) this.down("leasehold serve is silent", 2);
  }
}

async function errorOf(answer) {
  const body = await answer.text();
  try {
    const said = JSON.parse(body);
    if (said.error) return said;
  } catch { /* no JSON: another program answers here */ }
  return { error: `${answer.status} ${answer.statusText || body.slice(0, 200)}` };
}

let listStream = null;
let oneStream = null;

function openList() {
  listStream?.close();
  listStream = null;
  if (document.hidden || !$("ask").hidden) return;
  const query = new URLSearchParams({ sort: view.sort });
  for (const name of FILTERS) if (view[name]) query.set(name, view[name]);
  listStream = new Stream(query, onList, onDown);
}

function openOne() {
  oneStream?.close();
  oneStream = null;
  if (document.hidden || !view.lock || !$("ask").hidden) return;
  const query = new URLSearchParams({ name: view.lock });
  if (view.of) query.set("kind", view.of);
  oneStream = new Stream(query, onOne, onOneDown);
}

// ---- All locks

let good = { now: 0, at: 0 }; // when the rows were last true
let isFresh = false; // whether they are true now
let heardAt = -Infinity;
let heard = "";

function onList(event) {
  list = event;
  isFresh = !event.trouble;
  if (isFresh) good = { now: event.now_ms, at: event.at };
  setLive(isFresh ? "live" : "stale", isFresh ? "live" : "stale");
  setTrouble(event.trouble && `The server cannot be asked: ${event.trouble}`);
  draw();
  tellCount(event);
}

function onDown(why, tries) {
  isFresh = false;
  setLive("reconnecting", list ? "reconnecting…" : "connecting…");
  // A short break needs no more than the word.
  if (tries > 1) setTrouble(`No connection: ${why}`);
  draw();
}

function setLive(state, word) {
  $("live").dataset.state = state;
  say("live-word", word);
  document.body.classList.toggle("stale", !isFresh && list !== null);
}

function setTrouble(text) {
  $("trouble").hidden = !text;
  if (!text) return;
  say("trouble", sentence(text) + (good.now && list?.rows.length ? ` The rows are as of ${utc(good.now)}.` : ""));
}

/** To a screen reader: the count when it has changed, and not at each tick. */
function tellCount(event) {
  const words = isFiltered() ? `${some(event.matching, "lock")} of ${number(event.locks)} match` : some(event.locks, "lock");
  const text = event.gone ? `${words}, ${event.gone} whose holder is gone` : words;
  if (text === heard || performance.now() - heardAt < 10000) return;
  heard = text;
  heardAt = performance.now();
  say("heard", text);
}

const isFiltered = () => FILTERS.some((name) => view[name]);

/** Since the rows were true, as long as they are. */
const elapsed = () => (isFresh ? performance.now() - good.at : 0);

function draw() {
  if (!list) return;
  say("server", list.server);
  drawCounts();
  const before = scales;
  scales = new Map();
  const rows = list.rows.map((row) => drawRow(row, before));
  patch($("rows"), rows);
  $("locks").hidden = rows.length === 0;
  $("empty").hidden = rows.length > 0;
  if (rows.length === 0) drawEmpty();
  const { matching, locks } = list;
  const isCut = matching > rows.length;
  $("more").classList.toggle("cut", isCut);
  const words = isCut ? `${number(rows.length)} of ${number(matching)} shown: narrow the search`
    : isFiltered() ? `${number(matching)} of ${some(locks, "lock")} match` : "";
  say("more", rows.length ? words : "");
  const title = `${list.gone ? `✗ ${number(list.gone)} gone · ` : ""}${some(locks, "lock")} – leasehold`;
  if (document.title !== title) document.title = title;
}

function drawCounts() {
  for (const name of ["locks", "waited_for", "gone", "silent", "endless"]) {
    say(`n-${name}`, number(list[name]));
    $(`n-${name}`).parentElement.classList.toggle("zero", list[name] === 0);
  }
  say("l-locks", list.locks === 1 ? "lock" : "locks");
  say("l-endless", list.endless === 1 ? "never ends !" : list.endless ? "never end !" : "never end");
  say("n-oldest", list.oldest_ms == null ? NONE : human(list.oldest_ms + elapsed()));
  const isFirst = list.round_ms == null;
  const keys = list.keys == null ? "" : ` over ${some(list.keys, "key")}`;
  say("n-round", isFirst ? `${Math.floor(100 * list.progress)} %` : human(list.round_ms));
  say("l-round", (isFirst ? "of the first look" : "a round") + keys);
}

function drawEmpty() {
  const done = list.round_ms == null && !list.trouble ? list.progress : null;
  const words = list.trouble ? ["No locks are known", "The server has not been asked yet."]
    : done !== null ? [`The first look is under way: ${Math.floor(100 * done)} %`, "Locks appear as they are found."]
    : list.locks ? ["No lock matches", `${some(list.locks, "lock")} in all`]
    : [`No locks on ${list.server}`, `${list.keys == null ? "" : `${some(list.keys, "key was", "keys were")} looked at. `}A lock appears here soon after it is taken.`];
  say("empty-title", words[0]);
  say("empty-words", words[1]);
  $("empty-bar").hidden = done === null;
  $("empty-bar").firstElementChild.style.transform = `scaleX(${done})`;
  $("clear").hidden = !isFiltered();
}

// ---- One row

const isOther = (row, holder) => row.kind === "plain_mutex" && !holder.client;

function whoIs(row, holder) {
  if (isOther(row, holder)) return "another library";
  if (holder.label != null) return holder.label;
  if (holder.thread != null) return `a Java client, thread ${holder.thread}`;
  return holder.client ? `client ${holder.client}` : `permit ${holder.owner}`;
}

const whoWaits = (waiter) => waiter.label ?? (waiter.thread != null ? `a Java client, thread ${waiter.thread}` : `client ${waiter.client}`);

/** Of several holders the one that needs looking after most; else the first. */
function worst(row) {
  const rank = { gone: 0, silent: 1 };
  const of = (holder) => rank[holder.state] ?? 2;
  return row.holders.reduce((worst, holder) => (worst && of(worst) <= of(holder) ? worst : holder), null);
}

function whoHas(row) {
  if (row.count != null) return `${number(row.count)} to come`;
  const holder = worst(row);
  const others = (row.holder_count ?? row.holders.length) - 1;
  if (!holder) return NONE;
  return whoIs(row, holder) + (others > 1 ? ` and ${number(others)} others` : others ? " and another" : "");
}

function kindOf(row) {
  if (row.kind === "rw_lock" && row.holders.length) return row.holders[0].access === "shared" ? "read" : "write";
  return KINDS[row.kind] ?? row.kind;
}

function heldFor(row, gone) {
  return row.held_ms == null ? null : row.held_ms + gone;
}

/** When its lease ends that is not renewed: `null` where it has no holder, `Infinity` where it has no end. */
function leftOf(row) {
  if (!row.holders.length) return null;
  if ("left_ms" in row) return row.left_ms ?? Infinity;
  return Math.max(...row.holders.map((holder) => holder.remaining_ms ?? Infinity));
}

const LEASES = [1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400].map((s) => s * 1000);

/** The server tells what is left of a lease, and not how long it is: the length is the most that was seen, rounded up. */
function lengthOf(before, key, left) {
  const length = Math.max(before.get(key) ?? 0, LEASES.find((lease) => left <= lease) ?? left);
  scales.set(key, length);
  return length;
}

function bar(left, gone, length, state) {
  const share = left / length;
  const grade = state === "gone" ? " bad" : share < 1 / 3 && state !== "kept" ? " low" : "";
  return h("span", { class: "left" }, h("span", { class: `bar${grade}`, "aria-hidden": "true" }, h("i", { fill: (left - gone) / length })), h("b", { text: human(left - gone) }));
}

const MARKS = { gone: "✗ gone", silent: "? silent", kept: "kept" };

function mark(holder) {
  const word = holder && MARKS[holder.state];
  if (!word) return null;
  const idle = holder.state === "silent" && holder.idle_ms != null ? ` for ${human(holder.idle_ms)}` : "";
  return span(`mark ${holder.state}`, word + idle);
}

const cell = (is, ...inside) => h("td", { role: "cell", ...is }, inside);

function drawRow(row, before) {
  const key = keyOf(row.name, row.kind);
  const holder = worst(row);
  const gone = elapsed();
  const held = heldFor(row, gone);
  const left = leftOf(row);
  const grade = holder?.state === "gone" ? "bad" : holder?.state === "silent" || left === Infinity ? "warn" : "";
  const isOpen = row.name === view.lock && row.kind === view.of;
  const leftCell = left === null ? span("soft", NONE)
    : left === Infinity ? span("ever", "never ends !")
    : bar(left, gone, lengthOf(before, `${key}\0${holder.owner}`, left), holder.state);
  return h("tr", { key, role: "row", class: grade, lock: { lock: row.name, of: row.kind }, "aria-current": isOpen ? "true" : null },
    h("td", { role: "rowheader" }, h("a", { class: "name outside", href: address({ lock: row.name, of: row.kind }), text: row.name, most: NAME_MOST })),
    cell({ class: "c-kind", text: kindOf(row) }),
    cell({}, h("span", { class: "holder" }, span("outside", whoHas(row), NAME_MOST), mark(holder))),
    cell({ class: held === null ? "figure none" : "figure", text: held === null ? NONE : (row.held_is_least ? "≥ " : "") + human(held) }),
    cell({ class: "c-left" }, leftCell),
    cell({ class: row.waiting_clients ? "figure" : "figure none", text: row.waiting_clients ? number(row.waiting_clients) : NONE }));
}

// ---- The panel: one lock

let oneGood = { now: 0, at: 0 }; // when it was last true
let oneDown = null; // why it may be true no longer

function onOne(event) {
  oneDown = event.trouble ? `The server cannot be asked: ${event.trouble}` : null;
  // In trouble the last that was known stays: a lock that cannot be seen is not free.
  if (!oneDown) oneGood = { now: event.now_ms, at: event.at };
  if (!oneDown || (!one && event.status)) one = event;
  drawOne();
  checkTake();
}

function onOneDown(why) {
  oneDown = `No connection: ${why}`;
  drawOne();
}

function openPanel() {
  const panel = $("panel");
  document.body.classList.add("open");
  if (!panel.open) {
    if (wide.matches) panel.show();
    else panel.showModal();
  }
  say("p-name", view.lock);
  say("p-sub", "Looking…");
  oneDown = null;
  drawOne();
  patch($("p-body"), []);
  panel.scrollTop = 0;
  $("p-name").focus({ preventScroll: true });
}

function closePanel() {
  document.body.classList.remove("open");
  if ($("panel").open) $("panel").close();
  one = null;
}

function drawOne() {
  $("panel").classList.toggle("stale", Boolean(oneDown));
  $("p-trouble").hidden = !oneDown;
  if (oneDown) say("p-trouble", sentence(oneDown) + (one ? ` This is as of ${utc(oneGood.now)}.` : ""));
  if (!one || !view.lock) return;
  const { status } = one;
  const gone = oneDown ? 0 : performance.now() - oneGood.at;
  const now = oneGood.now + gone;
  const kind = KINDS[status?.kind ?? view.of] ?? view.of;
  say("p-sub", `${kind}${kind && " · "}${one.server}${status?.replica ? ", a replica: it may not know yet what its primary does" : ""}`);
  patch($("p-body"), [
    holdersPart(status, now, gone),
    status && waitingPart(status, now),
    awayPart(status),
    status?.token != null && section("token", "Token", h("p", { text: `${status.token} is the last that was given or reserved` })),
    status?.votes?.length && votesPart(status),
    historyPart(one.history ?? [], now),
    keysPart(one.keys ?? []),
  ].filter(Boolean));
}

const section = (key, title, ...inside) => h("section", { key }, h("h3", { text: title }), inside);
const fact = (word, text, type = "outside") => [h("dt", { text: word }), h("dd", { class: type, text })];

function holdersPart(status, now, gone) {
  if (!status) return section("holders", "Holder", h("p", { text: "Free: no client holds it." }));
  const title = status.holders.length > 1 ? `${number(status.holders.length)} holders` : "Holder";
  const about = [];
  if (status.count != null) about.push(h("p", { text: status.count ? `The count is ${number(status.count)}: so many are to come.` : "Open: the count is zero, or not set." }));
  if (status.available != null) about.push(h("p", { text: permits(status) }));
  if (!status.holders.length && status.count == null) {
    about.push(h("p", { text: status.available == null ? "Free: no client holds it." : "No holder of a permit is known." }));
  }
  return section("holders", title, about, status.holders.map((holder) => holderCard(status, holder, now, gone)));
}

function permits({ available: free }) {
  if (free < 0) return `None is free, and ${number(-free)} too many are out.`;
  return free === 0 ? "No permit is free." : `${some(free, "permit is", "permits are")} free.`;
}

function holderCard(status, holder, now, gone) {
  const left = holder.remaining_ms;
  const does = holder.access === "shared" ? "read by" : status.kind === "rw_lock" ? "written by" : "held by";
  const count = holder.access?.permits;
  const grade = holder.state === "gone" ? " bad" : holder.state === "silent" || left == null ? " warn" : "";
  const times = holder.access === "shared" ? `by ${number(holder.holds)} readers of this process` : `${number(holder.holds)} times by the same owner`;
  const key = `${keyOf(status.name, status.kind)}\0${holder.owner}`;
  return h("div", { key: holder.owner ?? "", class: `card${grade}` },
    h("p", {}, h("span", { class: "soft", text: `${does} ` }), span("who outside", whoIs(status, holder))),
    left == null ? null : bar(left, gone, lengthOf(scales, key, left), holder.state),
    h("p", { class: `state ${left == null ? "endless" : holder.state}`, text: told(holder, gone) }),
    h("dl", { class: "facts" },
      holder.since_ms != null && fact("since", `${human(now - holder.since_ms)} ago at most, ${utc(holder.since_ms)}`),
      fact("owner", holder.owner ?? "a value that no lock has: it may be data", "outside mono"),
      holder.client && holder.label != null && fact("client", holder.client, "outside mono"),
      count > 1 && fact("permits", number(count)),
      holder.holds > 1 && fact("entered", times)));
}

/** Its state and the end of its lease. */
function told(holder, gone) {
  if (holder.remaining_ms == null) {
    return `${holder.state ? `${holder.state}; ` : ""}never ends ! A holder that crashed would keep it for ever.`;
  }
  const left = human(holder.remaining_ms - gone);
  switch (holder.state) {
    case "alive": return `alive: its client is connected, and renews it as a rule; else free in ${left}`;
    case "silent": return `silent: its client is connected, and has sent nothing for ${human((holder.idle_ms ?? 0) + gone)}; free in ${left} unless it is renewed`;
    case "gone": return `gone: its client is not connected; free in ${left} unless it comes back`;
    case "kept": return `kept: run --at-least has ended, or was killed, and leaves it taken; free in ${left}`;
    default: return `ends in ${left} unless it is renewed; the server does not tell whether its holder is alive`;
  }
}

const QUEUE_MOST = 50;

function waitingPart(status, now) {
  const { queue, waiting_clients: clients } = status;
  const unseen = { spin_mutex: "; those of a spin mutex are not seen", plain_mutex: "; those of other libraries are not seen" };
  const heard = queue.length > clients ? `${number(queue.length)} in the queue` : clients ? some(clients, "client") : "nobody";
  const place = (waiter, before) => {
    const reads = waiter.access === "shared" ? ", to read" : "";
    const since = waiter.since_ms == null ? "" : `, for ${human(now - waiter.since_ms)}`;
    const off = waiter.connected === false ? ", not connected" : "";
    return h("li", { key: waiter.owner }, h("span", { text: before ? "then" : "next" }),
      h("span", {}, span("outside", whoWaits(waiter)), span("soft", reads + since), off && span("mark gone", off)));
  };
  const rest = queue.length - QUEUE_MOST;
  return section("queue", "Waiting", h("p", { text: heard + (unseen[status.kind] ?? "") }),
    queue.length ? h("ol", {}, queue.slice(0, QUEUE_MOST).map(place)) : null,
    rest > 0 && h("p", { class: "note", text: `and ${number(rest)} more` }));
}

function votesPart(status) {
  const says = (vote) => {
    if (vote.trouble) return `no answer: ${vote.trouble}`;
    if (!vote.holder) return "free";
    const left = vote.holder.remaining_ms == null ? "" : `, ends in ${human(vote.holder.remaining_ms)}`;
    return vote.holder.owner === status.holder?.owner ? `for the holder${left}` : `for another, ${vote.holder.owner}${left}`;
  };
  const rest = (vote) => (vote.quarantine_ms == null ? "" : `; restarted, its vote counts in ${human(vote.quarantine_ms)}`);
  return section("votes", "Servers", h("dl", { class: "facts" }, status.votes.map((vote) => fact(vote.server, says(vote) + rest(vote)))));
}

function table(heads, rows) {
  return h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { text })))), h("tbody", {}, rows));
}

/** A time of today without its date, another without its year. */
const clock = (ms, now) => utc(ms).slice(utc(ms).slice(0, 10) === utc(now).slice(0, 10) ? 11 : 5);

function historyPart(history, now) {
  const row = ({ owner, who, since_ms: since, until_ms: until }) => h("tr", { key: `${owner}\0${since}` },
    h("td", { class: "outside", text: who ?? owner ?? NONE }),
    h("td", { text: since == null ? NONE : clock(since, now) }),
    h("td", { text: until == null ? "now" : clock(until, now) }),
    h("td", { class: "figure", text: since == null ? NONE : human((until ?? now) - since) }));
  const words = "Holders that leasehold serve has seen while it was looked at, once a second: shorter holds are missing.";
  return section("history", "Holders so far",
    history.length ? table(["Holder", "Since", "Until", "For"], history.map(row)) : h("p", { text: "None yet." }), h("p", { class: "note", text: words }));
}

function keysPart(keys) {
  if (!keys.length) return null;
  const row = ({ key, what }) => h("tr", { key }, h("td", {}, span("outside", key, 160)), h("td", { text: what }));
  return section("keys", "Keys", table(["Key", "What"], keys.map(row)));
}

// ---- Take it away

let meant = null; // the holder that the dialog showed: no other is taken from

function awayPart(status) {
  if (!status?.holders.length && status?.count == null) return null;
  const note = (text) => h("p", { key: "note", class: "note", text });
  const inside = !one.may_unlock ? note("Nothing can be taken away here: leasehold serve was started without --allow-unlock.")
    : status.kind === "semaphore" ? note("The server does not know who has the permits of a semaphore without leases: none can be taken away.")
    : !OWNED.has(status.kind) ? note("A lock of this kind is taken away as a whole, on a terminal: leasehold unlock --force.")
    : !status.holders[0].owner ? note("It may be data and no lock, so it cannot be taken away here.")
    : h("button", { key: "take", type: "button", id: "p-take", text: "Take away…" });
  return h("section", { key: "away", class: "away" }, inside);
}

/** The consequences, by what is known of its holders. */
function consequences(status) {
  const [holder] = status.holders;
  const [next] = status.queue;
  const all = status.holders.length;
  const held = heldFor(status, 0);
  const alone = leftOf(status);
  const alive = status.holders.filter((each) => each.connected);
  const left = Math.max(...alive.map((each) => each.remaining_ms ?? Infinity));
  const within = left === Infinity ? "" : `, and after ${human(left)} at the latest`;
  const learns = `learns of it at its next renewal, as a rule within a third of its lease${within}. Until then two may be inside.`;
  const has = all > 1 ? `${number(all)} holders have it, and all lose it; the first is ${whoIs(status, holder)}` : `${whoIs(status, holder)} has it`;
  const waiters = some(status.waiting_clients, "client waits", "clients wait");
  return [
    held === null ? `${has}.` : `${has}, for ${human(held)} at ${status.held_is_least ? "least" : "most"}.`,
    holder.state === "silent" ? `It is silent, but connected: its process may go on at any moment. It ${learns}`
      : alive.length ? (all > 1 ? `Of them, ${number(alive.length)} ${alive.length > 1 ? "are" : "is"} alive: each ${learns}` : `It is alive: it ${learns}`)
      : holder.state === "gone" ? "It is gone: its client is not connected. If it lives, it may still work, and learns of it when it comes back."
      : holder.state === "kept" ? "Its command has ended, or was killed; run --at-least keeps the name taken on purpose."
      : "Nothing tells its holder: if it lives, it believes in its lease until that ends.",
    next ? `Next is ${whoWaits(next)}, which has it then.` : status.waiting_clients ? `${waiters}: the next in line has it then.` : "Nobody waits for it: it is free then.",
    alone === Infinity ? "Left alone, it never ends." : `Left alone, it is free in ${human(alone)} unless it is renewed.`,
  ];
}

function openTake() {
  const status = one?.status;
  if (!status?.holders.length) return;
  meant = { name: status.name, kind: status.kind, owners: status.holders.map((holder) => holder.owner), who: whoIs(status, status.holders[0]), waiting: status.waiting_clients, isOver: false };
  say("t-name", status.name);
  patch($("t-facts"), consequences(status).map((text) => h("li", { class: "outside", text })));
  $("t-typed").value = "";
  $("t-token").value = "";
  $("t-token-field").hidden = Boolean(tokens.unlock);
  $("t-fields").hidden = $("t-go").hidden = false;
  $("t-changed").hidden = true;
  say("t-cancel", "Leave it");
  sayTake("", "");
  checkTake();
  $("take").showModal();
  $("t-typed").focus();
}

function sayTake(text, grade) {
  $("t-answer").className = grade;
  say("t-answer", text);
}

function isTyped() {
  const typed = $("t-typed").value;
  return typed === meant.name || typed === visible(meant.name);
}

/** The holder may change while the dialog is open. */
function checkTake() {
  if (!meant || meant.isOver) return;
  const now = one?.status?.holders ?? [];
  const isSame = now.length > 0 && now.every((holder) => meant.owners.includes(holder.owner));
  $("t-changed").hidden = isSame;
  if (!isSame && one) say("t-changed", now.length ? `It has another holder by now: ${whoIs(one.status, now[0])}. Leave it, and look again.` : "It is free by now.");
  $("t-go").disabled = !isSame || !isTyped() || !($("t-token-field").hidden || $("t-token").value);
}

function endTake(text, grade) {
  meant.isOver = true;
  $("t-fields").hidden = $("t-go").hidden = $("t-changed").hidden = true;
  say("t-cancel", "Close");
  sayTake(text, grade);
  $("t-cancel").focus();
}

async function take() {
  const { name, kind, owners, who, waiting } = meant;
  const asked = meant;
  const token = $("t-token-field").hidden ? tokens.unlock : $("t-token").value.trim();
  const headers = { "Content-Type": "application/json", "X-Leasehold-Token": token };
  if (tokens.token) headers.Authorization = `Bearer ${tokens.token}`;
  $("t-go").disabled = true;
  sayTake("Asking…", "");
  let answer, said;
  try {
    answer = await fetch("/unlock", { method: "POST", headers, body: JSON.stringify({ name, kind, owners }) });
    said = answer.ok ? await answer.json() : await errorOf(answer);
  } catch {
    if (meant === asked) endTake("No answer: whether it was taken away is not known. Close, and look who has it.", "bad");
    return;
  }
  if (answer.ok) tokens.unlock = token;
  if (meant !== asked) return;
  if (answer.ok) endTake(said.taken === false ? "It was free by then." : `Taken away from ${who}; it ${waiting ? "goes to the next in line" : "is free"}.`, "good");
  else if (answer.status === 401) {
    $("t-token-field").hidden = false;
    sayTake(said.error, "bad");
    checkTake();
    $("t-token").focus();
  } else if (answer.status === 404) endTake("It was free already: nothing was taken away.", "good");
  else if (answer.status === 409 && said.holder) endTake(`Not taken away: another holder has it by now: ${whoIs({ kind }, said.holder)}.`, "bad");
  else endTake(`Not taken away: ${said.error}`, "bad");
}

// ---- The token of the page

function askForToken(why) {
  listStream?.close();
  oneStream?.close();
  if ($("take").open) $("take").close();
  closePanel();
  $("ask").hidden = false;
  $("board").hidden = $("counts").hidden = $("trouble").hidden = true;
  setLive("stale", "no token");
  say("ask-why", why);
  $("ask-token").value = "";
  $("ask-token").focus();
}

function answerToken() {
  tokens.token = $("ask-token").value.trim();
  $("ask").hidden = true;
  $("board").hidden = $("counts").hidden = false;
  setLive("connecting", "connecting…");
  show();
}

// ---- From the address to the page, and back

const wide = matchMedia("(min-width: 1100px)");

/** Shows what the address says. */
function show(before = {}) {
  if (document.activeElement !== $("search")) $("search").value = view.search;
  $("kind").value = view.kind;
  $("waited").checked = Boolean(view.waited);
  $("gone").checked = Boolean(view.gone);
  $("sort").value = view.sort;
  for (const button of document.querySelectorAll("[data-sort]")) {
    const { sort } = button.dataset;
    const order = sort === "name" || sort === "left" ? "ascending" : "descending";
    button.parentElement.ariaSort = sort === view.sort ? order : null;
  }
  if (!listStream || listStream.isClosed || [...FILTERS, "sort"].some((name) => before[name] !== view[name])) {
    heardAt = -Infinity;
    openList();
  }
  if (view.lock !== before.lock || view.of !== before.of || (view.lock && oneStream?.isClosed)) {
    one = null;
    if (view.lock) openPanel();
    else closePanel();
    openOne();
  }
  draw();
}

/** Another view. Back undoes the opening and the closing of the panel. */
function go(change) {
  const before = view;
  view = { ...view, ...change };
  history["lock" in change ? "pushState" : "replaceState"](null, "", address(view));
  show(before);
}

function leavePanel() {
  const key = keyOf(view.lock, view.of);
  go({ lock: "", of: "" });
  const row = [...$("rows").children].find((row) => row.key === key);
  (row?.querySelector("a") ?? $("search")).focus();
}

function onAddress() {
  const before = view;
  readAddress();
  show(before);
}

function onKey(event) {
  const isWriting = event.target.closest?.("input, select");
  const isModal = document.querySelector("dialog:modal");
  if (event.key === "/" && !isWriting && !isModal && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("search").focus();
    $("search").select();
  } else if (event.key === "Escape" && view.lock && !isModal && !(isWriting?.id === "search" && isWriting.value)) {
    event.preventDefault();
    leavePanel();
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !isModal) {
    const links = [...$("rows").querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const to = event.key === "ArrowDown" ? at + 1 : at - 1;
    if ((at < 0 && document.activeElement !== $("search")) || !links[to]) return;
    event.preventDefault();
    links[to].focus();
  }
}

function onRow(event) {
  const row = event.target.closest("tr");
  if (!row?.lock || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  // A text that was just marked shall be copied.
  if (!event.target.closest("a") && String(getSelection())) return;
  event.preventDefault();
  go(row.lock);
}

function listen() {
  for (const [kind, word] of Object.entries(KINDS)) if (kind !== "spin_mutex") $("kind").add(new Option(word, kind));
  let soon;
  $("search").addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(() => go({ search: $("search").value }), 200); });
  $("filters").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(soon); go({ search: $("search").value }); });
  for (const name of ["kind", "sort"]) $(name).addEventListener("change", () => go({ [name]: $(name).value }));
  for (const name of ["waited", "gone"]) $(name).addEventListener("change", () => go({ [name]: $(name).checked ? "1" : "" }));
  for (const button of document.querySelectorAll("[data-sort]")) button.addEventListener("click", () => go({ sort: button.dataset.sort }));
  $("clear").addEventListener("click", () => { $("search").value = ""; go(Object.fromEntries(FILTERS.map((name) => [name, ""]))); $("search").focus(); });
  $("rows").addEventListener("click", onRow);
  $("p-close").addEventListener("click", leavePanel);
  $("p-body").addEventListener("click", (event) => { if (event.target.id === "p-take") openTake(); });
  const panel = $("panel");
  panel.addEventListener("cancel", (event) => { event.preventDefault(); leavePanel(); });
  panel.addEventListener("close", () => { if (view.lock && !panel.open && $("ask").hidden) leavePanel(); });
  panel.addEventListener("click", (event) => { if (event.target === panel && event.clientX < panel.getBoundingClientRect().left) leavePanel(); });
  wide.addEventListener("change", () => { if (panel.open) { panel.close(); if (wide.matches) panel.show(); else panel.showModal(); } });
  $("t-form").addEventListener("submit", (event) => { event.preventDefault(); if (!$("t-go").disabled) take(); });
  $("t-form").addEventListener("input", checkTake);
  $("t-cancel").addEventListener("click", () => $("take").close());
  $("take").addEventListener("close", () => { meant = null; });
  $("ask-form").addEventListener("submit", (event) => { event.preventDefault(); answerToken(); });
  addEventListener("keydown", onKey);
  addEventListener("popstate", onAddress);
  // No viewer looks at a hidden page, so the server need not, either.
  document.addEventListener("visibilitychange", () => {
    isFresh = false;
    setLive("connecting", "connecting…");
    openList();
    openOne();
  });
}

/** Between two events, and when none comes. */
function tick() {
  if (document.hidden) return;
  for (const stream of [listStream, oneStream]) if (stream && !stream.isClosed) stream.watch();
  if (isFresh && performance.now() - good.at > 900) draw();
  if (one && performance.now() - oneGood.at > 900) drawOne();
}

listen();
readAddress();
show();
setInterval(tick, 1000);
