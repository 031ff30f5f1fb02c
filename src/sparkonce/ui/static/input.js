// Mouse, wheel, keys and buttons of the timeline.

import { draw } from "./chart.js";
import { firstFrom, line, page } from "./model.js";
import { byId, clock, el } from "./parts.js";
import { describe, pick, TABLE_ROWS } from "./timeline.js";
import { follow, GUTTER, move, setView, shape, showAll, TOP, view, x, zoom } from "./view.js";

function batchAt(clientX) {
  const at = shape(), left = clientX - byId("chart").getBoundingClientRect().left;
  const ms = view.from + (left - GUTTER) / at.scale, slackMs = 4 / at.scale, { batches, longest } = line();
  let best = null, i = firstFrom(batches, ms - longest - slackMs, (one) => one.began);
  for (; i < batches.length && batches[i].began <= ms + slackMs; i++) {
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
  tip.replaceChildren(...(mark ? describeMark(mark) : describe(batch, true)));
  const width = tip.offsetWidth;
  tip.style.left = `${Math.max(4, Math.min(left + 14, box.width - width - 4))}px`;
  if (left + 14 + width > box.width) tip.style.left = `${Math.max(4, left - width - 14)}px`;
  tip.style.top = `${TOP + 4}px`;
}
function describeMark(one) {
  return [el("p", {}, el("strong", {}, one.kind), ` ${clock(one.at)} UTC`), el("p", {}, one.text)];
}
const changes = (does) => () => { does(); draw(); };
function onKey(event) {
  const { batches } = line(), i = page.picked ? batches.indexOf(page.picked) : batches.length;
  const go = (n) => batches.length && pick(batches[Math.max(0, Math.min(batches.length - 1, n))], true);
  const arrow = (n) => () => { if (event.shiftKey) changes(() => move(n * 0.25))(); else go(i + n); };
  const keys = {
    ArrowLeft: arrow(-1), ArrowRight: arrow(1), Home: () => go(0), End: () => go(batches.length - 1),
    PageUp: () => go(i - TABLE_ROWS), PageDown: () => go(i + TABLE_ROWS), Escape: () => pick(null), 0: changes(showAll),
    "+": changes(() => zoom(0.5)), "=": changes(() => zoom(0.5)), "-": changes(() => zoom(2)),
    Enter: () => { const row = byId("batch-rows").querySelector(".chosen-row button"); if (row) row.focus(); },
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
}
function onWheel(event) {
  const before = view, sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY), at = shape();
  const share = (event.clientX - byId("chart").getBoundingClientRect().left - GUTTER) / at.width;
  if (sideways) move(event.deltaX / at.width); else zoom(1.0015 ** event.deltaY, Math.min(1, Math.max(0, share)));
  draw();
  const span = before.to - before.from, isSame = Math.abs(view.to - view.from - span) < span / 100;
  if (!isSame || (sideways && before.from !== view.from)) event.preventDefault();  // at the limit the page scrolls
}
function listenToDrags(chart) {
  let drag = null;
  chart.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
  });
  chart.addEventListener("pointermove", (event) => {
    if (!drag) { showTip(event); return; }
    if (Math.abs(event.clientX - drag.x) < 4 && !drag.moved) return;
    if (!drag.moved) {
      drag.moved = true;
      chart.setPointerCapture(event.pointerId);
      chart.classList.add("dragged");
      byId("tip").hidden = true;
    }
    const by = (drag.x - event.clientX) / shape().scale;
    setView(drag.from + by, drag.to + by);
    draw();
  });
  const drop = (event) => {
    if (drag && !drag.moved && event.type === "pointerup") pick(batchAt(event.clientX));
    drag = null;
    chart.classList.remove("dragged");
  };
  for (const name of ["pointerup", "pointercancel"]) chart.addEventListener(name, drop);
  chart.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
}
export function listen() {
  const chart = byId("chart");
  chart.addEventListener("keydown", onKey);
  chart.addEventListener("wheel", onWheel, { passive: false });
  listenToDrags(chart);
  const clicks = {
    earlier: () => move(-0.5), later: () => move(0.5), nearer: () => zoom(0.5), farther: () => zoom(2),
    all: showAll, newest: follow,
  };
  for (const [id, does] of Object.entries(clicks)) byId(id).addEventListener("click", changes(does));
  new ResizeObserver(() => draw()).observe(chart);
}
