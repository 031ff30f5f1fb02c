// Alarms and queries.

import { page } from "./model.js";
import { age, ago, byId, bySink, clock, count, el, now, put, several, sync, took } from "./parts.js";

const FACTS = ["Newest batch", "Rows a second, 5 min", "Time of a batch", "In doubt", "Next start", "Run", "Checkpoint",
  "Query id"];

let alarmKeys = null;

export function showAlarms() {
  const alarms = page.state.alarms, keys = new Map(alarms.map((one) => [one.key, one.title]));
  byId("alarm-count").hidden = !alarms.length;
  put(byId("alarm-count"), alarms.length);
  const isRead = page.state.queries.every((one) => one.read_ms !== null || one.error);
  byId("calm").hidden = alarms.length > 0;
  byId("calm").className = isRead ? "calm good" : "calm";
  put(byId("calm"), isRead ? "✓ No alarms." : "Not everything has been read yet.");
  const began = [...keys].filter(([key]) => alarmKeys && !alarmKeys.has(key)).map(([, title]) => `Alarm: ${title}.`);
  const ended = [...(alarmKeys || [])].filter(([key]) => !keys.has(key)).map(([, title]) => `Over: ${title}.`);
  const all = `${several(alarms.length, "alarm")}.`;
  if (began.length || ended.length) put(byId("news"), [...began, ...ended, all].join(" "));
  else if (!alarmKeys && alarms.length) put(byId("news"), all);
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
export function showQueries(choose) {
  const queries = page.state.queries.map((query, i) => ({ ...query, i }));
  sync(byId("cards"), queries, (one) => one.location, (one) => makeCard(one, choose), updateCard);
}
function makeCard(query, choose) {
  const button = el("button", { type: "button" }, "Timeline");
  button.addEventListener("click", () => choose(query.i));
  const list = el("dl", {}, ...FACTS.flatMap((name) => [el("dt", {}, name), el("dd")]));
  return el("article", { class: "card" }, el("header", {}, el("h3"), el("span", { class: "pill" }), button),
    el("p", { class: "says" }), list);
}
function updateCard(node, query) {
  const isChosen = query.i === page.chosen;
  node.classList.toggle("chosen-card", isChosen && page.state.queries.length > 1);
  put(node.querySelector("h3"), query.name);
  const pill = node.querySelector(".pill"), button = node.querySelector("button");
  put(pill, query.state);
  pill.className = `pill ${query.state.replaceAll(" ", "-")}`;
  button.hidden = page.state.queries.length < 2;
  button.setAttribute("aria-pressed", String(isChosen));
  button.setAttribute("aria-label", `Timeline of ${query.name}`);
  put(node.querySelector(".says"), standing(query));
  const places = node.querySelectorAll("dd");
  factsOf(query).forEach((fact, i) => put(places[i], fact));
}
function standing(query) {
  const since = query.since_ms ? age(now() - query.since_ms) : "";
  if (query.state === "at work") return `Batch ${query.batch}: ${query.phase}, for ${since}.`;
  if (query.state === "idle") return `Idle for ${since}.`;
  if (query.state === "ended") return `Ended ${since} ago.`;
  const stopped = query.state === "stopped" && since ? `Stopped ${since} ago. ` : "";
  const isSilent = query.state === "silent" && query.heard_ms;
  const silent = isSilent ? `Not heard of since ${clock(query.heard_ms)} UTC. ` : "";
  return stopped + silent + query.says + (query.next_step && ` Next: ${query.next_step}`);
}
function factsOf(query) {  // in the order of FACTS
  const times = query.took, doubt = query.in_doubt, rows = bySink(query.rows);
  const rates = Object.entries(query.rates).map(([sink, n]) => `${sink} ${count(n < 100 ? n : Math.round(n))}`);
  const newest = `${query.newest}${query.newest_state && `, ${query.newest_state}`}${rows && `; rows ${rows}`}`;
  const oldest = doubt.opened_ms ? `, the oldest from ${ago(doubt.opened_ms)}` : "";
  const sign = query.heard_ms ? `, last sign ${ago(query.heard_ms)}` : "";
  return [
    query.newest === null ? "none" : newest,
    rates.join(" · ") || "not known",
    times ? `p50 ${took(times.p50_ms)}, p95 ${took(times.p95_ms)}, of ${count(times.of)}` : "not known",
    doubt.transactions ? several(doubt.transactions, "transaction") + oldest : "nothing",
    query.next_start ? `${query.next_start}: ${query.next_says}` : "not known",
    query.run ? `${query.run}${query.host && ` on ${query.host}`}${sign}` : "none",
    query.location, query.query || "none yet",
  ];
}
