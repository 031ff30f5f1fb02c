// The part of the timeline that is seen. Whoever changes it draws it.

import { line, query } from "./model.js";
import { byId, now } from "./parts.js";

export const GUTTER = 56, TOP = 36, LANE = 22, AXIS = 20, GAP = 6;
const NEWEST = 60, DAY_MS = 86400000, UNSET = { from: 0, to: 1, follows: true, isSet: false };

export let view = UNSET;

export function forgetView() { view = UNSET; }
export function beginView() {  // with the newest batches, once there are some
  const { batches } = line();
  if (view.isSet || !batches.length) return;
  const first = batches[Math.max(0, batches.length - NEWEST)];
  const span = Math.min(DAY_MS, Math.max(10000, (edge() - first.began) * 1.04));
  view = { from: edge() - span, to: edge(), follows: true, isSet: true };
}
export function edge() {
  const batches = line().batches, one = query();
  const end = batches.length ? batches[batches.length - 1].end : now();
  return (one && one.state === "at work") || now() - end < 30000 ? Math.max(now(), end) : end;
}
export function setView(from, to) {
  const batches = line().batches;
  if (!batches.length) return;
  const oldest = batches[0].began, newest = edge(), whole = Math.max(1000, newest - oldest), pad = whole * 0.02;
  const span = Math.min(whole + 2 * pad, Math.max(50, to - from));
  const middle = (from + to) / 2;
  let begin = Math.max(oldest - pad, middle - span / 2);
  begin = Math.min(begin, newest + pad - span);
  view = { from: begin, to: begin + span, isSet: true, follows: begin + span >= newest };
}
export function reveal(one) {
  const span = view.to - view.from;
  if (one.began >= view.from && one.end <= view.to) return;
  setView(one.began + one.took / 2 - span / 2, one.began + one.took / 2 + span / 2);
}
export function zoom(by, share = 0.5) {
  const span = view.to - view.from, at = view.from + span * share;
  setView(at - span * by * share, at + span * by * (1 - share));
}
export const move = (by) => setView(view.from + by * (view.to - view.from), view.to + by * (view.to - view.from));
export function showAll() { view = { ...view, follows: true, isAll: true }; }
export function follow() { view = { ...view, follows: true, isAll: false }; }
export function followEdge() {
  const { batches } = line(), span = view.to - view.from, to = edge();
  if (!view.follows || !batches.length) return;
  const whole = to - batches[0].began;
  if (view.isAll) view = { ...view, from: batches[0].began - whole * 0.01, to: to + Math.max(1, whole) * 0.01 };
  else view = { ...view, from: to - span, to };
}
export function shape() {
  const box = byId("chart").getBoundingClientRect(), width = Math.max(1, box.width - GUTTER - 8);
  const bottom = box.height - AXIS - LANE - GAP;
  return { width, height: box.height, bottom, tall: bottom - TOP, scale: width / (view.to - view.from) };
}
export const x = (ms, at) => GUTTER + (ms - view.from) * at.scale;
