// Asks the server, and says if it answers.

import { noLine, page } from "./model.js";
import { byId, clock, now, put } from "./parts.js";
import { forgetView } from "./view.js";

const PATIENCE_MS = 8000, MOST_KEPT = 12000;

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}
export async function fetchAll() {  // false without contact: whatever else fails is a fault of this page
  try {
    page.state = await ask("/api/state");
    page.heardMs = Date.now();
    page.offsetMs = page.state.now_ms - page.heardMs;
    if (page.state.start !== page.start) {
      Object.assign(page, { start: page.state.start, timelines: [], picked: null });
      if (page.chosen >= page.state.queries.length) page.chosen = 0;
    }
    await fetchTimeline();
    page.lostMs = null;
    return true;
  } catch {
    if (page.lostMs === null) page.lostMs = page.heardMs;
    return false;
  }
}
async function fetchTimeline() {
  const asked = page.chosen, query = page.state.queries[asked];
  const line = page.timelines[asked] || (page.timelines[asked] = noLine()), after = line.last;
  if (!query || query.last <= after) return;
  const news = await ask(`/api/timeline?checkpoint=${asked}&after=${after}`);
  if (news.start !== page.start || line.last !== after) return;  // another answer came first
  if (news.first !== line.first) {  // another query has begun there
    page.timelines[asked] = { ...noLine(), first: news.first };
    if (asked === page.chosen) { page.picked = null; forgetView(); }
  }
  addTo(page.timelines[asked], news);
}
function addTo(line, news) {
  line.last = news.last;
  for (const [number, run, batch, began, transactions, recovered, healed, byLog, rows, phases] of news.batches) {
    const one = { number, batch, began, transactions, recovered, healed, byLog };
    Object.assign(one, { run: news.runs[run], rows: {}, phases: [] });
    for (let i = 0; i < rows.length; i += 2) one.rows[news.sinks[rows[i]]] = rows[i + 1];
    for (let i = 0; i < phases.length; i += 2) one.phases.push([news.phases[phases[i]], phases[i + 1]]);
    one.took = one.phases.reduce((sum, [, ms]) => sum + ms, 0);
    one.end = began + one.took;
    line.longest = Math.max(line.longest, one.took);
    line.batches.push(one);
  }
  line.batches.sort((a, b) => a.began - b.began || a.number - b.number);
  line.batches.splice(0, line.batches.length - MOST_KEPT);
  for (const [number, at, kind, batch, text, step] of news.events) {
    line.events.push({ number, at, kind, batch, text, step });
  }
  line.events.sort((a, b) => a.at - b.at || a.number - b.number);
  line.events.splice(0, line.events.length - MOST_KEPT);
}
export function showContact() {
  const isLost = page.lostMs !== null, contact = byId("contact");
  contact.className = `contact ${isLost ? "gone" : "live"}`;
  put(contact, isLost ? "No contact" : `Live, ${clock(now())} UTC`);
  put(byId("lost"), isLost ? `No contact with this page's server since ${clock(page.lostMs + page.offsetMs)} UTC: ` +
    "what you see is old. See if sparkonce ui still runs." : "");
  document.body.classList.toggle("old", isLost);
  const n = page.state ? page.state.alarms.length : 0, name = isLost ? "lost" : n > 9 ? "many" : String(n);
  const title = `${isLost ? "(?) " : n ? `(${n}) ` : ""}sparkonce`;
  if (document.title !== title) document.title = title;
  if (!byId("icon").href.endsWith(`/icon/${name}.svg`)) byId("icon").href = `/icon/${name}.svg`;
}
