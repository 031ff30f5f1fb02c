"use strict";
// The live page of sparkonce. What comes from servers is inserted as text, never as HTML.

const POLL_MS = 2000, PATIENCE_MS = 8000, TABLE_ROWS = 50, EVENT_ROWS = 20, MOST_KEPT = 12000;
const GROUPS = {
  taking: ["taking over", "reading the log", "claiming", "checking that no server went back",
    "sweeping what older runs left open"],
  writing: ["writing", "preparing every slot", "asking for objections"],
  deciding: ["deciding", "deciding", "settling a decision whose reply was lost"],
  committing: ["committing", "finishing"],
  healing: ["healing, replaying", "judging a loss", "running a decided batch into nothing"],
  delivering: ["at-most-once sinks", "writing to the at-most-once sinks"],
  tidying: ["tidying", "sweeping losers", "raising the floor", "deleting below the floor",
    "telling sinks that all is committed", "reporting positions"],
  undoing: ["undoing", "undoing its own"],
  log: ["known by the log alone", "from the first transaction to the decision, by the log"],
  other: ["other"],
};
const GROUP_OF = {};
for (const [group, [, ...names]] of Object.entries(GROUPS)) for (const name of names) GROUP_OF[name] = group;
const MARKS = {  // in a box of 12 by 12
  started: "M2 1 L11 6 L2 11 Z", stopped: "M1 1 H11 V11 H1 Z", healed: "M4 1 H8 V4 H11 V8 H8 V11 H4 V8 H1 V4 H4 Z",
  ended: "M1 1 H11 V11 H1 Z M4 4 H8 V8 H4 Z", recovered: "M6 1 A5 5 0 1 1 5.99 1 Z M6 4 A2 2 0 1 0 6.01 4 Z", swept: "M6 0 L12 6 L6 12 L0 6 Z",
};
const OTHER_MARK = "M6 3 A3 3 0 1 1 5.99 3 Z";
const GUTTER = 56, MARKS_AT = 10, RUNS_AT = 26, TOP = 36, LANE = 22, AXIS = 20, GAP = 6;

const byId = (id) => document.getElementById(id);
const count = (n) => n.toLocaleString("en-US");
const two = (n) => String(n).padStart(2, "0");
let state = null, chosen = 0, offsetMs = 0, lostMs = null, heardMs = Date.now(), start = "";
let alarmKeys = null, timelines = [], view = { from: 0, to: 1, follows: true, isSet: false }, picked = null, colours = null;

// --- small parts -----------------------------------------------------------------------------------------------------

function el(tag, about, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(about || {})) {
    if (name === "class") node.className = value; else node.setAttribute(name, value);
  }
  node.append(...children);  // texts become text nodes
  return node;
}
function put(node, text) { if (node.textContent !== String(text)) node.textContent = text; }
function sync(parent, items, key, make, update) {  // keeps the nodes of what stays, and so focus and selection
  const known = parent.known || (parent.known = new Map()), seen = new Set();
  let before = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    let node = known.get(name);
    if (!node) known.set(name, node = make(item));
    seen.add(name);
    if (node === before) before = node.nextSibling; else parent.insertBefore(node, before);
    if (update) update(node, item);
  }
  for (const [name, node] of known) if (!seen.has(name)) { node.remove(); known.delete(name); }
}
function cells(row, ...texts) { texts.forEach((text, i) => put(row.cells[i], text)); }
const now = () => Date.now() + offsetMs;
function clock(ms) {
  const at = new Date(ms), isToday = at.toISOString().slice(0, 10) === new Date(now()).toISOString().slice(0, 10);
  const time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
  return isToday ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}
function took(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const found = [];
  let left = Math.round(ms / 1000);
  for (const [unit, s] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (left >= s) found.push(`${Math.floor(left / s)} ${unit}`);
    left %= s;
  }
  return found.slice(0, 2).join(" ");
}
const age = (ms) => (ms < 60000 ? `${Math.max(0, Math.floor(ms / 1000))} s` : took(ms));
const ago = (ms) => `${age(now() - ms)} ago`;
const bySink = (rows) => Object.entries(rows).map(([sink, n]) => `${sink} ${count(n)}`).join(" · ");

// --- polling ---------------------------------------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}
async function poll() {
  try {
    const isHeard = await fetchAll();
    if (isHeard) { showState(); showTimeline(); }
    showContact();
  } finally {
    setTimeout(poll, POLL_MS);  // also after a fault of this page's own, which the console shows
  }
}
async function fetchAll() {  // false without contact: whatever else fails is a fault of this page
  try {
    state = await ask("/api/state");
    heardMs = Date.now();
    offsetMs = state.now_ms - heardMs;
    if (state.start !== start) { start = state.start; timelines = []; picked = null; if (chosen >= state.queries.length) chosen = 0; }
    await fetchTimeline();
    lostMs = null;
    return true;
  } catch {
    if (lostMs === null) lostMs = heardMs;
    return false;
  }
}
async function fetchTimeline() {
  const query = state.queries[chosen], line = timelines[chosen] || (timelines[chosen] = noLine());
  if (!query || query.last <= line.last) return;
  const after = line.last, asked = chosen;
  const news = await ask(`/api/timeline?checkpoint=${asked}&after=${after}`);
  if (news.start !== start || line.last !== after) return;  // another answer came first
  if (news.first !== line.first) timelines[asked] = { ...noLine(), first: news.first };  // another query has begun there
  addTo(timelines[asked], news);
}
function addTo(line, news) {
  line.last = news.last;
  for (const [number, run, batch, began, transactions, recovered, healed, byLog, rows, phases] of news.batches) {
    const one = { number, run: news.runs[run], batch, began, transactions, recovered, healed, byLog, rows: {}, phases: [] };
    for (let i = 0; i < rows.length; i += 2) one.rows[news.sinks[rows[i]]] = rows[i + 1];
    for (let i = 0; i < phases.length; i += 2) one.phases.push([news.phases[phases[i]], phases[i + 1]]);
    one.took = one.phases.reduce((sum, [, ms]) => sum + ms, 0);
    one.end = began + one.took;
    line.longest = Math.max(line.longest, one.took);
    line.batches.push(one);
  }
  line.batches.sort((a, b) => a.began - b.began || a.number - b.number);
  line.batches.splice(0, line.batches.length - MOST_KEPT);
  for (const [number, at, kind, batch, text, step] of news.events) line.events.push({ number, at, kind, batch, text, step });
  line.events.sort((a, b) => a.at - b.at || a.number - b.number);
  line.events.splice(0, line.events.length - MOST_KEPT);
}
function showContact() {
  const isLost = lostMs !== null, contact = byId("contact");
  contact.className = `contact ${isLost ? "gone" : "live"}`;
  put(contact, isLost ? "No contact" : `Live, ${clock(now())} UTC`);
  put(byId("lost"), isLost ? `No contact with this page's server since ${clock(lostMs + offsetMs)} UTC: what you see is ` +
    "old. See if sparkonce ui still runs." : "");
  document.body.classList.toggle("old", isLost);
  const n = state ? state.alarms.length : 0, name = isLost ? "lost" : n > 9 ? "many" : String(n);
  const title = `${isLost ? "(?) " : n ? `(${n}) ` : ""}sparkonce`;
  if (document.title !== title) document.title = title;
  if (!byId("icon").href.endsWith(`/icon/${name}.svg`)) byId("icon").href = `/icon/${name}.svg`;
}

// --- alarms, queries, systems ----------------------------------------------------------------------------------------

function showState() {
  showAlarms();
  sync(byId("cards"), state.queries.map((query, i) => ({ ...query, i })), (one) => one.location, makeCard, updateCard);
  showSystems();
  put(byId("version"), `sparkonce ${state.version}`);
}
function showAlarms() {
  const alarms = state.alarms, keys = new Map(alarms.map((one) => [one.key, one.title]));
  byId("alarm-count").hidden = !alarms.length;
  put(byId("alarm-count"), alarms.length);
  const isRead = state.queries.every((one) => one.read_ms !== null || one.error);
  byId("calm").hidden = alarms.length > 0;
  byId("calm").className = isRead ? "calm good" : "calm";
  put(byId("calm"), isRead ? "✓ No alarms." : "Not everything has been read yet.");
  const began = [...keys].filter(([key]) => alarmKeys && !alarmKeys.has(key)).map(([, title]) => `Alarm: ${title}.`);
  const ended = [...(alarmKeys || [])].filter(([key]) => !keys.has(key)).map(([, title]) => `Over: ${title}.`);
  if (began.length || ended.length) put(byId("news"), [...began, ...ended, `${alarms.length} alarms.`].join(" "));
  else if (!alarmKeys && alarms.length) put(byId("news"), `${alarms.length} alarms.`);
  alarmKeys = keys;
  sync(byId("alarm-list"), alarms, (one) => one.key, () => {
    const copy = el("button", { type: "button" }, "Copy"), code = el("code");
    copy.addEventListener("click", () => copyFrom(code, copy));
    return el("li", {}, el("h3", {}, el("span", { class: "level" }), el("span")), el("p"), el("p"),
      el("div", { class: "command" }, code, copy));
  }, (node, one) => {
    node.className = one.urgent ? "urgent" : "";
    put(node.querySelector(".level"), one.urgent ? "Urgent" : "Warning");
    put(node.querySelector("h3").lastChild, one.title);
    const [says, step] = node.querySelectorAll("p");
    put(says, one.says);
    put(step, one.next_step && `Next: ${one.next_step}`);
    put(node.querySelector("code"), one.command);
    node.querySelector("button").setAttribute("aria-label", `Copy the command for: ${one.title}`);
  });
}
async function copyFrom(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    put(button, "Copied");
  } catch {
    getSelection().selectAllChildren(code);
    put(button, "Selected");
  }
  setTimeout(() => put(button, "Copy"), 2000);
}
const FACTS = ["Newest batch", "Rows a second, 5 min", "Time of a batch", "In doubt", "Next start", "Run", "Checkpoint", "Query id"];
function makeCard(query) {
  const button = el("button", { type: "button" }, "Timeline");
  button.addEventListener("click", () => choose(query.i));
  const list = el("dl", {}, ...FACTS.flatMap((name) => [el("dt", {}, name), el("dd")]));
  return el("article", { class: "card" }, el("header", {}, el("h3"), el("span", { class: "pill" }), button),
    el("p", { class: "says" }), list);
}
function updateCard(node, query) {
  const isChosen = query.i === chosen;
  node.classList.toggle("chosen-card", isChosen && state.queries.length > 1);
  put(node.querySelector("h3"), query.name);
  const pill = node.querySelector(".pill"), button = node.querySelector("button");
  put(pill, query.state);
  pill.className = `pill ${query.state.replaceAll(" ", "-")}`;
  button.hidden = state.queries.length < 2;
  button.setAttribute("aria-pressed", String(isChosen));
  button.setAttribute("aria-label", `Timeline of ${query.name}`);
  const since = query.since_ms ? age(now() - query.since_ms) : "";
  const doing = { "at work": `Batch ${query.batch}: ${query.phase}, for ${since}.`, idle: `Idle for ${since}.`, ended: `Ended ${since} ago.` }[query.state] || "";
  const stopped = query.state === "stopped" && query.since_ms ? `Stopped ${since} ago. ` : "";
  const silent = query.state === "not heard of" && query.heard_ms ? `Not heard of since ${clock(query.heard_ms)} UTC. ` : "";
  put(node.querySelector(".says"), doing || stopped + silent + query.says + (query.next_step && ` Next: ${query.next_step}`));
  const times = query.took, rates = Object.entries(query.rates).map(([sink, n]) => `${sink} ${count(n < 100 ? n : Math.round(n))}`).join(" · ");
  const rows = bySink(query.rows), doubt = query.in_doubt;
  const facts = [
    query.newest === null ? "none" : `${query.newest}${query.newest_state && `, ${query.newest_state}`}${rows && `; rows ${rows}`}`,
    rates || "not known",
    times ? `p50 ${took(times.p50_ms)}, p95 ${took(times.p95_ms)}, of ${count(times.of)}` : "not known",
    doubt.transactions ? `${doubt.transactions} transactions${doubt.opened_ms ? `, the oldest from ${ago(doubt.opened_ms)}` : ""}` : "nothing",
    query.next_start ? `${query.next_start}: ${query.next_says}` : "not known",
    query.run ? `${query.run}${query.host && ` on ${query.host}`}${query.heard_ms ? `, last sign ${ago(query.heard_ms)}` : ""}` : "none",
    query.location, query.query || "none yet",
  ];
  const places = node.querySelectorAll("dd");
  facts.forEach((fact, i) => put(places[i], fact));
}
function showSystems() {
  const open = state.systems.flatMap((system) => system.open.map((one) => ({ ...one, system: system.name })));
  const none = { name: "", kind: "", error: "No systems are named: give --config, and their open transactions are shown." };
  sync(byId("systems"), state.systems.length ? state.systems : [none], (one) => one.name, () => el("li"), (node, one) => {
    const answered = one.answered_ms ? `answered ${ago(one.answered_ms)}, ${one.open.length} open` : "not answered yet";
    const late = one.silent_s > 15 ? `has not answered for ${age(one.silent_s * 1000)}` : "";
    node.className = one.name && (one.error || late) ? "bad" : "quiet";
    put(node, one.name ? `${one.name} (${one.kind}): ${one.error || late || answered}` : one.error);
  });
  byId("open").hidden = !state.systems.length;
  open.sort((a, b) => b.age_s - a.age_s);
  sync(byId("open-rows"), open.length ? open : [null], (one) => one ? `${one.system} ${one.name}` : "", (one) => {
    const gauge = el("span", { class: "gauge", "aria-hidden": "true" }, el("i"));
    return one ? el("tr", {}, el("td"), el("td", {}, el("span"), gauge), el("td", {}, el("span", { class: "pill" })),
      el("td"), el("td", { class: "words mono" }), el("td", { class: "words mono" }))
      : el("tr", {}, el("td", { colspan: "6" }, "Nothing of sparkonce is open on the systems that answered."));
  }, (row, one) => {
    if (!one) return;
    const part = one.timeout_s ? one.age_s / one.timeout_s : null, gauge = row.querySelector(".gauge");
    const old = one.age_s < 0 ? "not known" : age(one.age_s * 1000);
    put(row.cells[0], one.system);
    put(row.cells[1].firstChild, one.timeout_s ? `${old} of ${took(one.timeout_s * 1000)}, ${Math.round(part * 100)} %` : old);
    gauge.hidden = part === null;
    gauge.className = `gauge ${part > 0.9 ? "most" : part > 0.5 ? "half" : ""}`;
    gauge.firstChild.style.width = `${Math.min(100, 100 * part)}%`;
    const pill = row.querySelector(".pill");
    put(pill, one.verdict);
    pill.className = `pill ${one.verdict.replaceAll(" ", "-")}`;
    pill.title = one.why;
    const query = state.queries.find((each) => each.query.replaceAll("-", "").startsWith(one.query));
    put(row.cells[3], (query ? query.name : one.query) + (one.batch >= 0 ? `, batch ${one.batch}, slot ${one.slot}` : ""));
    put(row.cells[4], one.holds.join(", "));
    put(row.cells[5], one.name);
  });
  const held = new Map();
  for (const one of open) for (const part of one.partitions) {
    const key = `${one.system} ${part.topic}-${part.partition}`, known = held.get(key);
    if (!known || part.blocks) held.set(key, { ...part, key, by: part.blocks ? one.name : "another transaction" });
  }
  byId("held").hidden = !held.size;
  sync(byId("held-rows"), [...held.values()], (one) => one.key, () => el("tr", {}, el("th", { scope: "row" }),
    ...[0, 1, 2].map(() => el("td", { class: "n" })), el("td", {}, el("span", { class: "gauge", "aria-hidden": "true" }, el("i"))),
    el("td", { class: "words mono" })), (row, one) => {
    const behind = one.end - one.readable;
    cells(row, `${one.topic}-${one.partition}`, count(one.readable), count(one.end), count(behind));
    row.querySelector("i").style.width = `${one.end ? 100 * one.readable / one.end : 0}%`;
    put(row.cells[5], one.by);
  });
}

// --- the timeline ----------------------------------------------------------------------------------------------------

const noLine = () => ({ batches: [], events: [], first: 0, last: 0, longest: 0 });
const line = () => timelines[chosen] || noLine();
function firstFrom(list, ms, at) {  // the first whose time is at least so late
  let low = 0, high = list.length;
  while (low < high) { const middle = (low + high) >> 1; if (at(list[middle]) < ms) low = middle + 1; else high = middle; }
  return low;
}
function edge() {
  const batches = line().batches, query = state && state.queries[chosen];
  const end = batches.length ? batches[batches.length - 1].end : now();
  return (query && query.state === "at work") || now() - end < 30000 ? Math.max(now(), end) : end;
}
function choose(i) {
  chosen = i;
  picked = null;
  view = { from: 0, to: 1, follows: true, isSet: false };
  showState();
  showChosen();
  showTimeline();
  fetchAll().then((isHeard) => { if (isHeard) showTimeline(); showContact(); });
}
function showTimeline() {
  const query = state.queries[chosen], batches = line().batches;
  put(byId("timeline-head"), `Timeline of ${query.name}`);
  if (!view.isSet && batches.length) {
    const first = batches[Math.max(0, batches.length - 60)];
    const span = Math.min(86400000, Math.max(10000, (edge() - first.began) * 1.04));
    view = { from: edge() - span, to: edge(), follows: true, isSet: true };
  }
  showLegendOf(batches);
  showTables(query);
  draw();
}
function showTables(query) {
  const newest = line().batches.slice(-TABLE_ROWS).reverse();
  put(byId("batches-caption"), `The newest ${newest.length} batches of ${query.name}, the newest first`);
  sync(byId("batch-rows"), newest, (one) => `${start} ${chosen} ${one.number}`, (one) => {
    const button = el("button", { type: "button", class: "plain" }, String(one.batch));
    button.addEventListener("click", () => pick(one, true));
    const longest = one.phases.reduce((a, b) => (b[1] > a[1] ? b : a), ["-", 0]);
    return el("tr", {}, el("th", { scope: "row" }, button), el("td", {}, clock(one.began)), el("td", { class: "n" }, took(one.took)),
      el("td", {}, `${longest[0]}, ${took(longest[1])}`), el("td", { class: "n" }, bySink(one.rows) || "0"),
      el("td", { class: "n" }, count(one.transactions)), el("td", {}, one.recovered ? "yes" : "no"),
      el("td", { class: "n" }, count(one.healed)), el("td", {}, one.run));
  }, (row, one) => { row.classList.toggle("chosen-row", one === picked); });
  const events = line().events.slice(-EVENT_ROWS).reverse();
  byId("event-table").hidden = !events.length;
  byId("no-events").hidden = events.length > 0;
  put(byId("events-caption"), `The newest ${events.length} events of ${query.name}`);
  sync(byId("event-rows"), events, (one) => `${start} ${chosen} ${one.number}`, (one) => el("tr", {}, el("td", {}, clock(one.at)),
    el("th", { scope: "row" }, one.kind), el("td", {}, one.batch === null ? "-" : String(one.batch)),
    el("td", { class: "words" }, one.text + (one.step && ` Next: ${one.step}`))));
}
function describe(one, isNamed) {
  const marks = [one.recovered ? "recovered" : "", one.healed ? `${one.healed} healed` : "", one.byLog ? "by the log alone" : ""];
  const head = el("p", {}, el("strong", {}, isNamed ? `Batch ${one.batch}, ${took(one.took)}` : took(one.took)), `, began ${clock(one.began)} UTC`);
  const rows = Object.entries(one.rows).map(([sink, n]) => el("p", {}, `${sink}: ${count(n)} rows`));
  const body = el("tbody", {}, ...one.phases.map(([name, ms]) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = `var(--p-${GROUP_OF[name] || "other"})`;
    const usual = state.queries[chosen].usual[name];
    return el("tr", {}, el("td", {}, swatch, name), el("td", { class: "n" }, `${count(ms)} ms`),
      el("td", { class: "n quiet" }, usual && !one.byLog ? count(usual.p50_ms) : ""));
  }));
  const heads = el("thead", {}, el("tr", {}, ...["Phase", "took", "usual"].map((text, i) => el("th", { scope: "col", class: i ? "n" : "" }, text))));
  const table = el("table", { class: "phases" }, el("caption", { class: "unseen" }, `Phases of batch ${one.batch}`), heads, body);
  return [head, ...rows, el("p", {}, `${count(one.transactions)} transactions${marks.filter(Boolean).map((m) => `, ${m}`).join("")}`),
    el("p", { class: "quiet" }, `Run ${one.run}`), table];
}
function showChosen() {
  put(byId("chosen-head"), picked ? `Batch ${picked.batch}` : "Batch");
  byId("chosen").replaceChildren(...(picked ? describe(picked)
    : [el("p", { class: "quiet" }, "Choose a batch: click it, or use the arrow keys.")]));
}
function pick(one, isSeen) {
  picked = one;
  byId("chart").dataset.chosen = one ? one.batch : "";
  showChosen();
  if (one && isSeen) reveal(one);
  if (one) put(byId("news"), `Batch ${one.batch}, ${took(one.took)}, ${bySink(one.rows) || "no"} rows, ${one.transactions} transactions` +
    `${one.recovered ? ", recovered" : ""}${one.healed ? `, ${one.healed} healed` : ""}. ` +
    one.phases.map(([name, ms]) => `${name} ${took(ms)}`).join(", "));
  if (state) showTables(state.queries[chosen]);
  draw();
}
function reveal(one) {
  const span = view.to - view.from;
  if (one.began >= view.from && one.end <= view.to) return;
  setView(one.began + one.took / 2 - span / 2, one.began + one.took / 2 + span / 2);
}
function setView(from, to) {
  const batches = line().batches;
  if (!batches.length) return;
  const oldest = batches[0].began, newest = edge(), whole = Math.max(1000, newest - oldest), pad = whole * 0.02;
  const span = Math.min(whole + 2 * pad, Math.max(50, to - from));
  const middle = (from + to) / 2;
  let begin = Math.max(oldest - pad, middle - span / 2);
  begin = Math.min(begin, newest + pad - span);
  view = { from: begin, to: begin + span, isSet: true, follows: begin + span >= newest };
  draw();
}
function zoom(by, share = 0.5) {
  const span = view.to - view.from, at = view.from + span * share;
  setView(at - span * by * share, at + span * by * (1 - share));
}
const move = (by) => setView(view.from + by * (view.to - view.from), view.to + by * (view.to - view.from));
function showAll() {
  view = { ...view, follows: true, isAll: true };
  draw();
}
function follow() {
  view = { ...view, follows: true, isAll: false };
  draw();
}
function followEdge() {
  const { batches } = line(), span = view.to - view.from, to = edge();
  if (!view.follows || !batches.length) return;
  view.from = view.isAll ? batches[0].began - (to - batches[0].began) * 0.01 : to - span;
  view.to = view.isAll ? to + Math.max(1, to - batches[0].began) * 0.01 : to;
}

function readColours() {
  const style = getComputedStyle(document.documentElement), found = {};
  for (const group of Object.keys(GROUPS)) found[group] = style.getPropertyValue(`--p-${group}`).trim();
  for (const name of ["text", "quiet", "line", "grid", "panel", "sunk", "work", "bad"]) found[name] = style.getPropertyValue(`--${name}`).trim();
  return found;
}
function niceStep(most, parts) {
  const raw = most / parts, ten = 10 ** Math.floor(Math.log10(raw));
  return ten * [1, 2, 5, 10].find((one) => one * ten >= raw);
}
function timeStep(span, parts) {
  const steps = [10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6, 3.6e6, 1.08e7, 2.16e7, 4.32e7, 8.64e7];
  return steps.find((one) => span / one <= parts) || 8.64e7 * Math.ceil(span / 8.64e7 / parts);
}
function shape() {
  const box = byId("chart").getBoundingClientRect(), width = Math.max(1, box.width - GUTTER - 8);
  const bottom = box.height - AXIS - LANE - GAP;
  return { width, height: box.height, bottom, tall: bottom - TOP, scale: width / (view.to - view.from) };
}
const x = (ms, at) => GUTTER + (ms - view.from) * at.scale;

function draw() {
  followEdge();
  const canvas = byId("canvas"), chart = byId("chart"), at = shape(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(chart.clientWidth * ratio);
  canvas.height = Math.round(chart.clientHeight * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  colours = colours || readColours();
  pen.font = "11px system-ui, sans-serif";
  const { batches, longest } = line();
  const first = firstFrom(batches, view.from - longest, (one) => one.began);
  const seen = batches.slice(first, firstFrom(batches, view.to, (one) => one.began)).filter((one) => one.end >= view.from);
  const columns = columnsOf(seen, at), most = Math.max(1, ...columns.map((one) => one.slowest.took));
  drawAxes(pen, at, most);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, 0, at.width, at.height);
  pen.clip();
  drawRuns(pen, at, seen);
  for (const one of columns) drawColumn(pen, at, one, most);
  drawWork(pen, at);
  drawEvents(pen, at);
  pen.restore();
  const isMerged = columns.length < seen.length;
  Object.assign(chart.dataset, { batches: seen.length, columns: columns.length, all: batches.length, from: view.from, to: view.to });
  put(byId("drawn"), batches.length ? `${count(seen.length)} of ${count(batches.length)} batches` +
    (isMerged ? `, in ${count(columns.length)} columns: each shows its median, and pale its slowest` : "") : "No batches are known yet.");
  byId("newest").setAttribute("aria-pressed", String(view.follows && !view.isAll));
  byId("all").setAttribute("aria-pressed", String(!!view.isAll));
}
function columnsOf(seen, at) {
  const isMerged = seen.length > at.width / 4, found = [];
  for (const one of seen) {
    const left = x(one.began, at), bucket = Math.floor(left / 3), last = found[found.length - 1];
    if (isMerged && last && last.bucket === bucket) {
      last.all.push(one);
      if (one.took > last.slowest.took) last.slowest = one;
    } else {
      found.push({ bucket, left: isMerged ? bucket * 3 : left, right: isMerged ? bucket * 3 + 2.4 : 0, slowest: one, all: [one] });
    }
  }
  if (!isMerged) for (const one of found) one.right = Math.max(x(one.slowest.end, at), one.left + 1.5);
  return found;
}
function drawAxes(pen, at, most) {
  const step = niceStep(most, 4), unit = timeStep(view.to - view.from, Math.max(2, at.width / 110));
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (let ms = 0; ms <= most; ms += step) {
    const y = at.bottom - at.tall * ms / most;
    pen.fillStyle = colours.grid;
    pen.fillRect(GUTTER, Math.round(y), at.width, 1);
    pen.fillStyle = colours.quiet;
    pen.fillText(ms ? took(ms).replace(/\.?0+ s$/, " s") : "0", GUTTER - 6, y);
  }
  pen.textAlign = "center";
  for (let ms = Math.ceil(view.from / unit) * unit; ms < view.to && line().batches.length; ms += unit) {
    pen.fillStyle = colours.grid;
    pen.fillRect(Math.round(x(ms, at)), TOP, 1, at.height - TOP - AXIS);
    pen.fillStyle = colours.quiet;
    const text = unit >= 8.64e7 ? new Date(ms).toISOString().slice(5, 10) : unit < 1000 ? new Date(ms).toISOString().slice(17, 23)
      : new Date(ms).toISOString().slice(11, unit < 60000 ? 19 : 16);
    if (x(ms, at) > GUTTER + 14 && x(ms, at) < GUTTER + at.width - 14) pen.fillText(text, x(ms, at), at.height - AXIS / 2);
  }
}
function drawRuns(pen, at, seen) {
  pen.textAlign = "left";
  let run = null, labelled = -1e9;
  for (const one of seen) {
    if (one.run === run) continue;
    const left = Math.max(x(one.began, at), GUTTER);
    if (run !== null) {
      pen.fillStyle = colours.quiet;
      for (let y = 0; y < at.height - AXIS; y += 6) pen.fillRect(Math.round(left) - 2, y, 1, 3);
    }
    run = one.run;
    if (left - labelled < 100) continue;
    labelled = left;
    pen.fillStyle = colours.quiet;
    pen.fillText(`run ${run}`, left + 3, RUNS_AT);
  }
}
function drawColumn(pen, at, column, most) {
  const wide = Math.max(1.5, column.right - column.left - (column.right - column.left > 4 ? 1 : 0));
  const stack = (one) => one.phases.reduce((y, [name, ms]) => {
    const tall = at.tall * ms / most;
    pen.fillStyle = colours[GROUP_OF[name] || "other"];
    pen.fillRect(column.left, y - tall, wide, tall);
    return y - tall;
  }, at.bottom);
  pen.globalAlpha = column.all.length > 1 ? 0.5 : 1;
  const y = stack(column.slowest);
  pen.globalAlpha = 1;
  if (column.all.length > 1) {
    const middle = [...column.all].sort((a, b) => a.took - b.took)[(column.all.length - 1) >> 1];
    pen.fillStyle = colours.panel;
    pen.fillRect(column.left, at.bottom - at.tall * middle.took / most, wide, at.tall * middle.took / most);
    stack(middle);
  }
  const top = at.bottom + GAP;
  if (column.all.length > 1) {  // the part of the time at which some batch was at work
    const busy = column.all.reduce((sum, one) => sum + one.took, 0) * at.scale / 3, tall = LANE * Math.min(1, busy);
    pen.fillStyle = colours.writing;
    pen.fillRect(column.left, top + LANE - tall, wide, tall);
  } else {
    let ms = column.slowest.began;
    for (const [name, took_ms] of column.slowest.phases) {
      pen.fillStyle = colours[GROUP_OF[name] || "other"];
      pen.fillRect(x(ms, at), top, Math.max(0.5, took_ms * at.scale), LANE);
      ms += took_ms;
    }
  }
  if (picked && column.all.includes(picked)) {
    pen.strokeStyle = colours.text;
    pen.lineWidth = 2;
    pen.strokeRect(column.left - 2, Math.max(TOP, y - 3), wide + 4, top + LANE - Math.max(TOP, y - 3));
  }
}
function drawWork(pen, at) {
  const query = state && state.queries[chosen];
  if (!query || !["at work", "not heard of"].includes(query.state) || !query.phase || query.phase === "idle") return;
  const begin = query.state === "at work" ? query.since_ms : query.heard_ms, end = now(), top = at.bottom + GAP;
  pen.fillStyle = colours[GROUP_OF[query.phase] || "other"];
  const first = Math.max(x(begin, at), GUTTER), last = Math.min(x(end, at), GUTTER + at.width);
  for (let left = first; left < last; left += 6) pen.fillRect(left, top, 3, LANE);  // dashed: it goes on
}
function drawEvents(pen, at) {
  for (const one of line().events) {
    if (one.at < view.from || one.at > view.to) continue;
    pen.save();
    pen.translate(x(one.at, at) - 6, MARKS_AT - 6);
    pen.fillStyle = one.kind === "stopped" ? colours.bad : one.kind === "healed" ? colours.healing : colours.text;
    pen.fill(new Path2D(MARKS[one.kind] || OTHER_MARK), "evenodd");
    pen.restore();
  }
}

// --- mouse, wheel, keys ----------------------------------------------------------------------------------------------

function batchAt(clientX) {
  const at = shape(), left = clientX - byId("chart").getBoundingClientRect().left;
  const ms = view.from + (left - GUTTER) / at.scale, slackMs = 4 / at.scale, { batches, longest } = line();
  let best = null;
  for (let i = firstFrom(batches, ms - longest - slackMs, (one) => one.began); i < batches.length && batches[i].began <= ms + slackMs; i++) {
    const one = batches[i];
    if (one.end >= ms - slackMs && (!best || one.took > best.took)) best = one;
  }
  return best;
}
function showTip(event) {
  const chart = byId("chart"), box = chart.getBoundingClientRect(), at = shape(), tip = byId("tip");
  const left = event.clientX - box.left, isEvent = event.clientY - box.top < TOP;
  const mark = isEvent ? line().events.filter((one) => Math.abs(x(one.at, at) - left) < 9).pop() : null;
  const batch = mark || left < GUTTER ? null : batchAt(event.clientX);
  tip.hidden = !mark && !batch;
  if (tip.hidden) return;
  tip.replaceChildren(...(mark ? [el("p", {}, el("strong", {}, mark.kind), ` ${clock(mark.at)} UTC`), el("p", {}, mark.text)] : describe(batch, true)));
  const width = tip.offsetWidth;
  tip.style.left = `${Math.max(4, Math.min(left + 14, box.width - width - 4))}px`;
  if (left + 14 + width > box.width) tip.style.left = `${Math.max(4, left - width - 14)}px`;
  tip.style.top = `${TOP + 4}px`;
}
function onKey(event) {
  const { batches } = line(), i = picked ? batches.indexOf(picked) : batches.length;
  const go = (n) => batches.length && pick(batches[Math.max(0, Math.min(batches.length - 1, n))], true);
  const keys = {
    ArrowLeft: () => (event.shiftKey ? move(-0.25) : go(i - 1)), ArrowRight: () => (event.shiftKey ? move(0.25) : go(i + 1)),
    PageUp: () => go(i - TABLE_ROWS), PageDown: () => go(i + TABLE_ROWS), Home: () => go(0), End: () => go(batches.length - 1),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: showAll, Escape: () => pick(null),
    Enter: () => { const row = byId("batch-rows").querySelector(".chosen-row button"); if (row) row.focus(); },
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
}
function listen() {
  const chart = byId("chart");
  let drag = null;
  chart.addEventListener("keydown", onKey);
  chart.addEventListener("wheel", (event) => {
    const before = { ...view }, sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY), at = shape();
    const share = (event.clientX - chart.getBoundingClientRect().left - GUTTER) / at.width;
    if (sideways) move(event.deltaX / at.width); else zoom(1.0015 ** event.deltaY, Math.min(1, Math.max(0, share)));
    const span = before.to - before.from, isSame = Math.abs(view.to - view.from - span) < span / 100;
    if (!isSame || (sideways && before.from !== view.from)) event.preventDefault();  // at the limit the page scrolls
  }, { passive: false });
  chart.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: view.from, to: view.to, moved: false }; });
  chart.addEventListener("pointermove", (event) => {
    if (!drag) { showTip(event); return; }
    if (Math.abs(event.clientX - drag.x) < 4 && !drag.moved) return;
    if (!drag.moved) { drag.moved = true; chart.setPointerCapture(event.pointerId); chart.classList.add("dragged"); byId("tip").hidden = true; }
    const by = (drag.x - event.clientX) / shape().scale;
    setView(drag.from + by, drag.to + by);
  });
  const drop = (event) => {
    if (drag && !drag.moved && event.type === "pointerup") pick(batchAt(event.clientX));
    drag = null;
    chart.classList.remove("dragged");
  };
  for (const name of ["pointerup", "pointercancel"]) chart.addEventListener(name, drop);
  chart.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
  const clicks = { earlier: () => move(-0.5), later: () => move(0.5), nearer: () => zoom(0.5), farther: () => zoom(2), all: showAll, newest: follow };
  for (const [id, does] of Object.entries(clicks)) byId(id).addEventListener("click", does);
  new ResizeObserver(() => draw()).observe(chart);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = null; draw(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) showContact(); });
}
function showLegendOf(batches) {  // rare groups only where they are
  const seen = new Set(batches.flatMap((one) => one.phases.map(([name]) => GROUP_OF[name] || "other")));
  for (const group of ["healing", "delivering", "undoing", "log", "other"]) byId(`legend-${group}`).hidden = !seen.has(group);
}
function showLegend() {
  const swatches = Object.entries(GROUPS).map(([group, [title, ...names]]) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = `var(--p-${group})`;
    return el("li", { title: names.join("; "), id: `legend-${group}` }, swatch, title);
  });
  const marks = Object.entries(MARKS).map(([kind, path]) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), drawn = document.createElementNS(svg.namespaceURI, "path");
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    drawn.setAttribute("d", path);
    drawn.setAttribute("fill-rule", "evenodd");
    svg.append(drawn);
    return el("li", {}, svg, kind);
  });
  byId("legend").append(...swatches, ...marks);
}

showLegend();
listen();
new Image().src = "/icon/lost.svg";  // kept, for when the server is gone
poll();
