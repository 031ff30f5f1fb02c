// Small parts: nodes and texts.

import { page } from "./model.js";

export const byId = (id) => document.getElementById(id);
export const count = (n) => n.toLocaleString("en-US");
export const several = (n, what) => `${count(n)} ${n === 1 ? what : `${what}s`}`;
const two = (n) => String(n).padStart(2, "0");

export function el(tag, about, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(about || {})) {
    if (name === "class") node.className = value; else node.setAttribute(name, value);
  }
  node.append(...children);  // texts become text nodes
  return node;
}
export function put(node, text) { if (node.textContent !== String(text)) node.textContent = text; }
export function sync(parent, items, key, make, update) {  // keeps the nodes of what stays, and so focus and selection
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
export function cells(row, ...texts) { texts.forEach((text, i) => put(row.cells[i], text)); }
export const now = () => Date.now() + page.offsetMs;
export function clock(ms) {
  const at = new Date(ms), isToday = at.toISOString().slice(0, 10) === new Date(now()).toISOString().slice(0, 10);
  const time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
  return isToday ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}
export function took(ms) {
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
export const age = (ms) => (ms < 60000 ? `${Math.max(0, Math.floor(ms / 1000))} s` : took(ms));
export const ago = (ms) => `${age(now() - ms)} ago`;
export const bySink = (rows) => Object.entries(rows).map(([sink, n]) => `${sink} ${count(n)}`).join(" · ");
