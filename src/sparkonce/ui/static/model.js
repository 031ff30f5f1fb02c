// What this page knows: the last answers of its server, and what is chosen.

export const page = {
  state: null, start: "",  // the last state, and which start of the server it is of
  heardMs: Date.now(), lostMs: null, offsetMs: 0,  // offsetMs: from this machine's clock to the server's
  timelines: [], chosen: 0, picked: null,  // chosen: the number of a query; picked: a batch of its timeline
};

export const noLine = () => ({ batches: [], events: [], first: 0, last: 0, longest: 0 });
export const line = () => page.timelines[page.chosen] || noLine();
export const query = () => page.state && page.state.queries[page.chosen];
export function firstFrom(list, ms, at) {  // the first whose time is at least so late
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(list[middle]) < ms) low = middle + 1; else high = middle;
  }
  return low;
}
