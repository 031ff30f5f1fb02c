// The groups of phases with their colours, and the marks of events.

import { byId, el } from "./parts.js";

export const GROUPS = {
  taking: ["taking over", "reading the log", "claiming", "checking that no server was restored from an older state",
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
export const groupOf = (name) => GROUP_OF[name] || "other";
export const MARKS = {  // in a box of 12 by 12
  started: "M2 1 L11 6 L2 11 Z", stopped: "M1 1 H11 V11 H1 Z", healed: "M4 1 H8 V4 H11 V8 H8 V11 H4 V8 H1 V4 H4 Z",
  ended: "M1 1 H11 V11 H1 Z M4 4 H8 V8 H4 Z", recovered: "M6 1 A5 5 0 1 1 5.99 1 Z M6 4 A2 2 0 1 0 6.01 4 Z",
  swept: "M6 0 L12 6 L6 12 L0 6 Z",
};
export const OTHER_MARK = "M6 3 A3 3 0 1 1 5.99 3 Z";

const RARE = ["healing", "delivering", "undoing", "log", "other"];

export function showLegend() {
  const swatches = Object.entries(GROUPS).map(([group, [title, ...names]]) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = `var(--p-${group})`;
    return el("li", { title: names.join("; "), id: `legend-${group}` }, swatch, title);
  });
  const marks = Object.entries(MARKS).map(([kind, path]) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const drawn = document.createElementNS(svg.namespaceURI, "path");
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    drawn.setAttribute("d", path);
    drawn.setAttribute("fill-rule", "evenodd");
    svg.append(drawn);
    return el("li", {}, svg, kind);
  });
  byId("legend").append(...swatches, ...marks);
}
export function showLegendOf(batches) {  // rare groups only where they are
  const seen = new Set(batches.flatMap((one) => one.phases.map(([name]) => groupOf(name))));
  for (const group of RARE) byId(`legend-${group}`).hidden = !seen.has(group);
}
