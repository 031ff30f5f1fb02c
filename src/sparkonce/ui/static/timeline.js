// The timeline's tables, and the batch that is chosen.

import { draw } from "./chart.js";
import { line, page, query } from "./model.js";
import { byId, bySink, clock, count, el, put, several, sync, took } from "./parts.js";
import { groupOf, showLegendOf } from "./phases.js";
import { beginView, reveal } from "./view.js";

export const TABLE_ROWS = 50;
const EVENT_ROWS = 20;

export function showTimeline() {
  put(byId("timeline-head"), `Timeline of ${query().name}`);
  beginView();
  showLegendOf(line().batches);
  if (!page.picked) showChosen();  // another query, or another start of the server
  showTables();
  draw();
}
function showTables() {
  const newest = line().batches.slice(-TABLE_ROWS).reverse(), events = line().events.slice(-EVENT_ROWS).reverse();
  const { name } = query(), key = (one) => `${page.start} ${page.chosen} ${one.number}`;
  put(byId("batches-caption"), `The newest ${newest.length} batches of ${name}, the newest first`);
  sync(byId("batch-rows"), newest, key, batchRow, (row, one) => {
    row.classList.toggle("chosen-row", one === page.picked);
  });
  byId("event-table").hidden = !events.length;
  byId("no-events").hidden = events.length > 0;
  put(byId("events-caption"), `Newest first, of ${name}: ${several(events.length, "event")}`);
  sync(byId("event-rows"), events, key, (one) => el("tr", {}, el("td", {}, clock(one.at)),
    el("th", { scope: "row" }, one.kind), el("td", {}, one.batch === null ? "-" : String(one.batch)),
    el("td", { class: "words" }, one.text + (one.step && ` Next: ${one.step}`))));
}
function batchRow(one) {
  const button = el("button", { type: "button", class: "plain" }, String(one.batch));
  button.addEventListener("click", () => pick(one, true));
  const [phase, ms] = one.phases.reduce((a, b) => (b[1] > a[1] ? b : a), ["-", 0]), n = { class: "n" };
  return el("tr", {}, el("th", { scope: "row" }, button), el("td", {}, clock(one.began)), el("td", n, took(one.took)),
    el("td", {}, `${phase}, ${took(ms)}`), el("td", n, bySink(one.rows) || "0"), el("td", n, count(one.transactions)),
    el("td", {}, one.recovered ? "yes" : "no"), el("td", n, count(one.healed)), el("td", {}, one.run));
}
export function describe(one, isNamed) {
  const marks = [one.recovered && "recovered", one.healed && `${one.healed} healed`, one.byLog && "by the log alone"];
  const title = isNamed ? `Batch ${one.batch}, ${took(one.took)}` : took(one.took);
  const head = el("p", {}, el("strong", {}, title), `, began ${clock(one.began)} UTC`);
  const transactions = [several(one.transactions, "transaction"), ...marks.filter(Boolean)].join(", ");
  const rows = Object.entries(one.rows).map(([sink, n]) => el("p", {}, `${sink}: ${several(n, "row")}`));
  const body = el("tbody", {}, ...one.phases.map(([name, ms]) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = `var(--p-${groupOf(name)})`;
    const usual = query().usual[name];
    return el("tr", {}, el("td", {}, swatch, name), el("td", { class: "n" }, `${count(ms)} ms`),
      el("td", { class: "n quiet" }, usual && !one.byLog ? count(usual.p50_ms) : ""));
  }));
  const heads = ["Phase", "took", "usual"].map((text, i) => el("th", { scope: "col", class: i ? "n" : "" }, text));
  const table = el("table", { class: "phases" }, el("caption", { class: "unseen" }, `Phases of batch ${one.batch}`),
    el("thead", {}, el("tr", {}, ...heads)), body);
  return [head, ...rows, el("p", {}, transactions), el("p", { class: "quiet" }, `Run ${one.run}`), table];
}
function showChosen() {
  byId("chart").dataset.chosen = page.picked ? page.picked.batch : "";
  put(byId("chosen-head"), page.picked ? `Batch ${page.picked.batch}` : "Batch");
  byId("chosen").replaceChildren(...(page.picked ? describe(page.picked)
    : [el("p", { class: "quiet" }, "Choose a batch: click it, or use the arrow keys.")]));
}
export function pick(one, isSeen) {
  page.picked = one;
  showChosen();
  if (one && isSeen) reveal(one);
  if (one) put(byId("news"), spoken(one));
  if (page.state) showTables();
  draw();
}
function spoken(one) {
  const rows = bySink(one.rows) || "none", recovered = one.recovered ? ", recovered" : "";
  const healed = one.healed ? `, ${one.healed} healed` : "";
  const phases = one.phases.map(([name, ms]) => `${name} ${took(ms)}`).join(", ");
  return `Batch ${one.batch}, ${took(one.took)}, rows ${rows}, ${several(one.transactions, "transaction")}` +
    `${recovered}${healed}. ${phases}`;
}
