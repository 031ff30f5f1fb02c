'use strict';
document.documentElement.classList.add('js');
(() => {
  const data = JSON.parse(document.getElementById('moments').textContent);
  const drivers = data.drivers.map(([number, began, ended, apart, phases, batches]) => {
    let at = began, batch = 0;
    return {number, began, ended, phases, at: apart.map(ms => at += ms), batch: batches.map(n => batch += n)};
  });
  const tip = document.createElement('div');
  tip.id = 'tip';
  tip.hidden = true;
  document.body.append(tip);
  const clock = ms => {
    const s = ms / 1000, two = n => String(Math.floor(n)).padStart(2, '0');
    return (s >= 3600 ? Math.floor(s / 3600) + ':' : '') + two(s / 60 % 60) + ':' + two(s % 60) + '.' +
      String(Math.floor(ms % 1000)).padStart(3, '0');
  };
  const told = ms => [clock(ms), ...drivers.filter(d => d.began <= ms && ms < d.ended).map(d => {
    let low = -1, high = d.at.length;
    while (high - low > 1) { const mid = low + high >> 1; d.at[mid] <= ms ? low = mid : high = mid; }
    return `driver ${d.number}: ` + (low < 0 ? data.starting : `${data.phases[d.phases[low]]}, batch ${d.batch[low]}`);
  })].join('\n');
  const line = document.createElementNS(document.querySelector('svg').namespaceURI, 'path');
  line.setAttribute('class', 'cursor');
  const hide = () => { tip.hidden = true; line.remove(); };
  for (const svg of document.querySelectorAll('svg.strip')) {
    const from = +svg.dataset.from, to = +svg.dataset.to, box = svg.viewBox.baseVal;
    svg.addEventListener('pointermove', event => {
      const shape = svg.getBoundingClientRect(), x = (event.clientX - shape.left) * box.width / shape.width;
      const ms = from + (x - data.gutter) / data.width * (to - from);
      if (ms < from || ms > to) return hide();
      line.setAttribute('d', `M${x} 0V${box.height}`);
      if (line.parentNode !== svg) svg.append(line);
      tip.hidden = false;
      const title = event.target.closest('a')?.querySelector('title');
      tip.textContent = told(ms) + (title ? '\n' + title.textContent : '');
      tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
      tip.style.top = Math.max(8, event.clientY - tip.offsetHeight - 12) + 'px';
    });
    svg.addEventListener('pointerleave', hide);
  }
  const open = () => document.getElementById(location.hash.slice(1))?.closest('details')?.setAttribute('open', '');
  addEventListener('hashchange', open);
  open();
  document.getElementById('which')?.addEventListener('change', event => {
    for (const step of document.querySelectorAll('details.step'))
      step.hidden = event.target.value !== '' && step.dataset.fault !== event.target.value;
  });
})();
