// The systems, what is open on them, and held partitions of Kafka.

import { page } from "./model.js";
import { age, ago, byId, cells, count, el, put, sync, took } from "./parts.js";

const LATE_S = 15;

export function showSystems() {
  const systems = page.state.systems;
  const open = systems.flatMap((system) => system.open.map((one) => ({ ...one, system: system.name })));
  showAnswers(systems);
  byId("open").hidden = !systems.length;
  open.sort((a, b) => b.age_s - a.age_s);
  const key = (one) => (one ? `${one.system} ${one.name}` : "");
  sync(byId("open-rows"), open.length ? open : [null], key, makeRow, updateRow);
  showHeld(open);
}
function showAnswers(systems) {
  const says = "No systems are named: give --config, and their open transactions are shown.";
  const none = { name: "", kind: "", error: says };
  sync(byId("systems"), systems.length ? systems : [none], (one) => one.name, () => el("li"), (node, one) => {
    const answer = one.answered_ms ? `answered ${ago(one.answered_ms)}, ${one.open.length} open` : "not answered yet";
    const late = one.silent_s > LATE_S ? `has not answered for ${age(one.silent_s * 1000)}` : "";
    node.className = one.name && (one.error || late) ? "bad" : "quiet";
    put(node, one.name ? `${one.name} (${one.kind}): ${one.error || late || answer}` : one.error);
  });
}
function gauge() {
  return el("span", { class: "gauge", "aria-hidden": "true" }, el("i"));
}
function makeRow(one) {
  const none = "Nothing is open on the systems that answered.";
  if (!one) return el("tr", {}, el("td", { colspan: "6" }, none));
  return el("tr", {}, el("td"), el("td", {}, el("span"), gauge()), el("td", {}, el("span", { class: "pill" })),
    el("td"), el("td", { class: "words mono" }), el("td", { class: "words mono" }));
}
function updateRow(row, one) {
  if (!one) return;
  const part = one.timeout_s ? one.age_s / one.timeout_s : null, bar = row.querySelector(".gauge");
  const old = one.age_s < 0 ? "not known" : age(one.age_s * 1000);
  const ofTimeout = one.timeout_s ? ` of ${took(one.timeout_s * 1000)}, ${Math.round(part * 100)} %` : "";
  put(row.cells[0], one.system);
  put(row.cells[1].firstChild, old + ofTimeout);
  bar.hidden = part === null;
  bar.className = `gauge ${part > 0.9 ? "most" : part > 0.5 ? "half" : ""}`;
  bar.firstChild.style.width = `${Math.min(100, 100 * part)}%`;
  const pill = row.querySelector(".pill");
  put(pill, one.verdict);
  pill.className = `pill ${one.verdict.replaceAll(" ", "-")}`;
  pill.title = one.why;
  const query = one.query && page.state.queries.find((each) => each.query.replaceAll("-", "").startsWith(one.query));
  const slot = one.batch >= 0 ? `, batch ${one.batch}, slot ${one.slot}` : "";
  put(row.cells[3], (query ? query.name : one.query || "another application") + slot);
  put(row.cells[4], one.holds.join(", "));
  put(row.cells[5], one.name);
}
function showHeld(open) {
  const held = new Map();
  for (const one of open) for (const part of one.partitions) {
    const key = `${one.system} ${part.topic}-${part.partition}`, known = held.get(key);
    if (!known || part.blocks) held.set(key, { ...part, key, by: part.blocks ? one.name : "another transaction" });
  }
  byId("held").hidden = !held.size;
  const make = () => el("tr", {}, el("th", { scope: "row" }), ...[0, 1, 2].map(() => el("td", { class: "n" })),
    el("td", {}, gauge()), el("td", { class: "words mono" }));
  sync(byId("held-rows"), [...held.values()], (one) => one.key, make, (row, one) => {
    const behind = one.end - one.readable;
    cells(row, `${one.topic}-${one.partition}`, count(one.readable), count(one.end), count(behind));
    row.querySelector("i").style.width = `${one.end ? 100 * one.readable / one.end : 0}%`;
    put(row.cells[5], one.by);
  });
}
