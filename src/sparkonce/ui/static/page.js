// The live page of sparkonce. What comes from servers is inserted as text, never as HTML.

import { showAlarms, showQueries } from "./cards.js";
import { recolour } from "./chart.js";
import { fetchAll, showContact } from "./contact.js";
import { listen } from "./input.js";
import { page } from "./model.js";
import { byId, put } from "./parts.js";
import { showLegend } from "./phases.js";
import { showSystems } from "./systems.js";
import { showTimeline } from "./timeline.js";
import { forgetView } from "./view.js";

const POLL_MS = 2000;

async function poll() {
  try {
    const isHeard = await fetchAll();
    if (isHeard) { showState(); showTimeline(); }
    showContact();
  } finally {
    setTimeout(poll, POLL_MS);  // also after a fault of this page's own, which the console shows
  }
}
function showState() {
  showAlarms();
  showQueries(choose);
  showSystems();
  put(byId("version"), `sparkonce ${page.state.version}`);
}
function choose(i) {  // of several queries the one whose timeline is shown
  page.chosen = i;
  page.picked = null;
  forgetView();
  showState();
  showTimeline();
  fetchAll().then((isHeard) => { if (isHeard) showTimeline(); showContact(); });
}

showLegend();
listen();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
document.addEventListener("visibilitychange", () => { if (!document.hidden) showContact(); });
new Image().src = "/icon/lost.svg";  // kept, for when the server is gone
poll();
