// Draws the timeline.

import { firstFrom, line, page, query } from "./model.js";
import { byId, count, now, put, took } from "./parts.js";
import { groupOf, GROUPS, MARKS, OTHER_MARK } from "./phases.js";
import { AXIS, followEdge, GAP, GUTTER, LANE, shape, TOP, view, x } from "./view.js";

const MARKS_AT = 10, RUNS_AT = 26, COLUMN = 3, DAY_MS = 86400000;

let colours = null;

export function recolour() {
  colours = null;
  draw();
}

function readColours() {
  const style = getComputedStyle(document.documentElement), found = {};
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  for (const group of Object.keys(GROUPS)) found[group] = read(`p-${group}`);
  for (const name of ["text", "quiet", "grid", "panel", "bad"]) found[name] = read(name);
  return found;
}
function niceStep(most, parts) {
  const raw = most / parts, ten = 10 ** Math.floor(Math.log10(raw));
  return ten * [1, 2, 5, 10].find((one) => one * ten >= raw);
}
function timeStep(span, parts) {
  const steps = [10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6, 3.6e6, 1.08e7, 2.16e7, 4.32e7];
  return [...steps, DAY_MS].find((one) => span / one <= parts) || DAY_MS * Math.ceil(span / DAY_MS / parts);
}
export function draw() {
  followEdge();
  const canvas = byId("canvas"), chart = byId("chart"), at = shape(), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(chart.clientWidth * ratio);
  canvas.height = Math.round(chart.clientHeight * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  colours = colours || readColours();
  pen.font = "11px system-ui, sans-serif";
  const batches = line().batches, seen = seenBatches();
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
  Object.assign(chart.dataset, { batches: seen.length, columns: columns.length, all: batches.length });
  Object.assign(chart.dataset, { from: view.from, to: view.to });
  const merged = `, in ${count(columns.length)} columns: each shows its median, and pale its slowest`;
  put(byId("drawn"), batches.length ? `${count(seen.length)} of ${count(batches.length)} batches` +
    (columns.length < seen.length ? merged : "") : "No batches are known yet.");
  byId("newest").setAttribute("aria-pressed", String(view.follows && !view.isAll));
  byId("all").setAttribute("aria-pressed", String(!!view.isAll));
}
function seenBatches() {
  const { batches, longest } = line();
  const first = firstFrom(batches, view.from - longest, (one) => one.began);
  const last = firstFrom(batches, view.to, (one) => one.began);
  return batches.slice(first, last).filter((one) => one.end >= view.from);
}
function columnsOf(seen, at) {  // a batch each, or all batches of a few pixels
  const isMerged = seen.length > at.width / 4, found = [];
  for (const one of seen) {
    const begin = x(one.began, at), bucket = Math.floor(begin / COLUMN), last = found[found.length - 1];
    if (isMerged && last && last.bucket === bucket) {
      last.all.push(one);
      if (one.took > last.slowest.took) last.slowest = one;
    } else {
      const left = isMerged ? bucket * COLUMN : begin;
      const right = isMerged ? left + 2.4 : Math.max(x(one.end, at), left + 1.5);
      found.push({ bucket, left, right, slowest: one, all: [one] });
    }
  }
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
    const isInside = x(ms, at) > GUTTER + 14 && x(ms, at) < GUTTER + at.width - 14;
    if (isInside) pen.fillText(axisText(ms, unit), x(ms, at), at.height - AXIS / 2);
  }
}
function axisText(ms, unit) {
  const text = new Date(ms).toISOString();
  if (unit >= DAY_MS) return text.slice(5, 10);
  return unit < 1000 ? text.slice(17, 23) : text.slice(11, unit < 60000 ? 19 : 16);
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
    pen.fillStyle = colours[groupOf(name)];
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
    const busy = column.all.reduce((sum, one) => sum + one.took, 0) * at.scale / COLUMN;
    const tall = LANE * Math.min(1, busy);
    pen.fillStyle = colours.writing;
    pen.fillRect(column.left, top + LANE - tall, wide, tall);
  } else {
    let ms = column.slowest.began;
    for (const [name, tookMs] of column.slowest.phases) {
      pen.fillStyle = colours[groupOf(name)];
      pen.fillRect(x(ms, at), top, Math.max(0.5, tookMs * at.scale), LANE);
      ms += tookMs;
    }
  }
  if (page.picked && column.all.includes(page.picked)) {
    pen.strokeStyle = colours.text;
    pen.lineWidth = 2;
    pen.strokeRect(column.left - 2, Math.max(TOP, y - 3), wide + 4, top + LANE - Math.max(TOP, y - 3));
  }
}
function drawWork(pen, at) {
  const one = query(), top = at.bottom + GAP;
  if (!one || !["at work", "silent"].includes(one.state) || !one.phase || one.phase === "idle") return;
  const begin = one.state === "at work" ? one.since_ms : one.heard_ms;
  pen.fillStyle = colours[groupOf(one.phase)];
  const first = Math.max(x(begin, at), GUTTER), last = Math.min(x(now(), at), GUTTER + at.width);
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
