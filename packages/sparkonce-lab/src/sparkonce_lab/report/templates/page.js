'use strict';
document.documentElement.classList.add('js');
(() => {
  const {drivers, phases, starting, gutter, width} = JSON.parse(document.getElementById('moments').textContent);
  const tip = document.body.appendChild(document.createElement('div'));
  tip.id = 'tip';
  tip.hidden = true;
  const clock = ms => new Date(ms).toISOString().slice(ms < 3600000 ? 14 : 11, 23);
  const phase = (moments, ms) => {
    const last = moments.findLast(([at]) => at <= ms);
    return last ? `${phases[last[1]]}, batch ${last[2]}` : starting;
  };
  const told = ms => [clock(ms), ...drivers.filter(([, began, ended]) => began <= ms && ms < ended)
    .map(([number, , , moments]) => `driver ${number}: ${phase(moments, ms)}`)];
  const line = document.createElementNS(document.querySelector('svg').namespaceURI, 'path');
  line.setAttribute('class', 'cursor');
  const hide = () => { tip.hidden = true; line.remove(); };
  for (const svg of document.querySelectorAll('svg.strip')) {
    const from = +svg.dataset.from, to = +svg.dataset.to, box = svg.viewBox.baseVal;
    svg.addEventListener('pointermove', event => {
      const shape = svg.getBoundingClientRect(), x = (event.clientX - shape.left) * box.width / shape.width;
      const ms = from + (x - gutter) / width * (to - from);
      if (ms < from || ms > to) return hide();
      line.setAttribute('d', `M${x} 0V${box.height}`);
      if (line.parentNode !== svg) svg.append(line);
      const title = event.target.closest('a')?.querySelector('title');
      tip.textContent = [...told(ms), ...title ? [title.textContent] : []].join('\n');
      tip.hidden = false;
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
