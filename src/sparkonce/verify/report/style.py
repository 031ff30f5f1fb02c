"""How the page looks. The colours of phases are told apart with any kind of colour blindness, and by name besides."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--page:#fff;--panel:#f4f6f8;--text:#16191d;--quiet:#55606c;--line:#d5dbe2;--faint:#e8ecf0;
--link:#0059a3;--good:#00694c;--good-back:#e2f4ed;--bad:#a81c12;--bad-back:#fdeae7;--doubt:#7a4d00;--doubt-back:#fdf1d8;
--starting:#aab3bd;--claiming:#b96a96;--replaying:#d9c414;--writing:#0072b2;--deciding:#e69f00;--finishing:#009e73;
--tidying:#7cc4ee;--undoing:#16191d;--idle:#e3e8ed;--outage:#d55e00;--recovery:#f6cfb0;--heat:0,114,178}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--panel:#1d2227;--text:#e9ecef;--quiet:#a5b0bb;--line:#39424b;
--faint:#262c32;--link:#7cc0ff;--good:#56d1a6;--good-back:#12322a;--bad:#ff9c8e;--bad-back:#3b1a16;--doubt:#f2c15f;
--doubt-back:#352a10;--starting:#5c6772;--claiming:#cc79a7;--replaying:#f0e442;--writing:#3d9bdc;--deciding:#f0ab1f;
--finishing:#1fbf91;--tidying:#8fd0f5;--undoing:#f4f6f8;--idle:#323a42;--outage:#f5863a;--recovery:#6e4426;
--heat:61,155,220}}
*{box-sizing:border-box}
html{scroll-padding-top:1rem}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main,header,footer{max-width:1160px;margin:0 auto;padding:0 24px}
header{padding-top:28px}
h1{font-size:1rem;font-weight:600;color:var(--quiet);margin:0 0 14px;letter-spacing:.01em}
h2{font-size:1.35rem;line-height:1.25;margin:56px 0 10px}
h3{font-size:1rem;margin:28px 0 6px}
p{max-width:76ch;margin:8px 0}
a{color:var(--link)}
small{font-size:.8125rem;color:var(--quiet)}
code,pre{font:.8125rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--panel);border-radius:6px;padding:10px 12px;overflow-x:auto;margin:8px 0;white-space:pre-wrap;
overflow-wrap:anywhere}
.words{color:var(--quiet);font-size:.8125rem}
.warn{color:var(--bad)}
.verdict{border-radius:10px;padding:22px 26px;border-left:8px solid;background:var(--doubt-back);border-color:var(--doubt)}
.verdict b{display:block;font-size:1.75rem;line-height:1.2;color:var(--doubt);margin-bottom:6px}
.verdict p{font-size:1.1875rem;line-height:1.45;margin:0;max-width:70ch}
.verdict p+p{font-size:.9375rem;color:var(--quiet);margin-top:8px}
.verdict.passed{background:var(--good-back);border-color:var(--good)}.verdict.passed b{color:var(--good)}
.verdict.failed{background:var(--bad-back);border-color:var(--bad)}.verdict.failed b{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:16px 0 0;padding:0}
.tiles div{background:var(--panel);border-radius:8px;padding:12px 16px}
.tiles dt{color:var(--quiet);font-size:.8125rem;line-height:1.3}
.tiles dd{margin:0;font-size:1.5rem;font-weight:600;line-height:1.3}
.tiles dd small{display:block;font-weight:400;line-height:1.35}
nav{margin-top:18px;font-size:.9375rem}nav a{margin-right:18px;white-space:nowrap}
.wide{overflow-x:auto;margin:12px 0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:0 40px;align-items:start}
table{border-collapse:collapse;font-size:.9375rem;min-width:min(100%,420px)}
caption{text-align:left;font-weight:600;padding-bottom:4px}
th,td{padding:6px 12px;text-align:left;vertical-align:top;border-bottom:1px solid var(--faint)}
th:first-child,td:first-child{padding-left:0}
thead th{color:var(--quiet);font-weight:600;font-size:.8125rem;vertical-align:bottom;border-color:var(--line)}
tbody th{font-weight:500;white-space:nowrap}
.n{text-align:right}td.n{white-space:nowrap}
.total{font-weight:600}
td.none{color:var(--quiet)}
td.good b{color:var(--good)}
td.bad{background:var(--bad-back)}td.bad b{color:var(--bad)}
table.anomalies{width:100%}table.anomalies td:first-child{min-width:15rem}
table.named td{overflow-wrap:anywhere}
.example{border-left:4px solid var(--bad);padding-left:14px;margin:18px 0}
.example h3{margin:0}.example ul{margin:4px 0;padding-left:18px}.example code{overflow-wrap:anywhere}
table.matrix th,table.matrix td{padding:5px 9px}
table.matrix th:first-child{padding-left:0}
table.matrix thead .swatch{display:block;margin:0 0 3px auto}
td.heat{color:var(--text)}
.h1{background:rgba(var(--heat),.14)}.h2{background:rgba(var(--heat),.26)}.h3{background:rgba(var(--heat),.38)}
.h4{background:rgba(var(--heat),.5)}
.swatch{display:inline-block;width:14px;height:10px;border-radius:2px;margin-right:6px;background:var(--c,transparent);
print-color-adjust:exact;-webkit-print-color-adjust:exact}
.swatch.outage{background:var(--outage)}.swatch.recovery{background:var(--recovery)}
.s-starting{--c:var(--starting)}.s-claiming{--c:var(--claiming)}.s-replaying{--c:var(--replaying)}
.s-writing{--c:var(--writing)}.s-deciding{--c:var(--deciding)}.s-finishing{--c:var(--finishing)}
.s-tidying{--c:var(--tidying)}.s-undoing{--c:var(--undoing)}.s-idle{--c:var(--idle)}
.legend{display:grid;grid-template-columns:auto 1fr;gap:4px 16px;font-size:.8125rem;background:var(--panel);
border-radius:8px;padding:10px 14px;margin:12px 0}
.legend>div{display:contents}.legend b{font-weight:600;color:var(--quiet)}
.legend ul{margin:0;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px}
.legend li{white-space:nowrap}
.key{width:14px;height:14px;vertical-align:-2px;margin-right:5px;overflow:visible;flex:none}
i.tick{display:inline-block;width:2px;height:12px;margin-right:7px;vertical-align:-2px}
i.done,i.seen{background:var(--quiet)}i.again{background:var(--claiming)}i.seen{background:var(--writing)}
svg.strip{display:block;width:100%;min-width:760px;margin:0 0 14px}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--quiet);
font-variant-numeric:tabular-nums}
svg .lane{fill:var(--quiet)}svg .no{fill:var(--text);font-weight:600;font-size:10.5px}
svg .batch{font-size:9.5px}
svg .mid{text-anchor:middle}
svg .grid{stroke:var(--line);fill:none;stroke-width:1;shape-rendering:crispEdges}
svg .base{stroke:var(--faint);fill:none}
svg .phase{stroke:var(--c);stroke-width:11;fill:none;shape-rendering:crispEdges}
svg .life{fill:transparent;stroke:var(--quiet);stroke-width:.6}
svg .death{stroke:var(--bad);stroke-width:2;fill:none}
svg .mark{fill:var(--text)}
svg .outage{fill:var(--outage)}svg .recovery{fill:var(--recovery)}
svg path.tick{fill:none;stroke-width:1}
svg .done{stroke:var(--quiet)}svg .again{stroke:var(--claiming);stroke-width:2!important}svg .seen{stroke:var(--writing)}
svg .early{stroke:var(--bad);stroke-width:2!important}
svg a{cursor:pointer}svg a:hover .mark,svg a:focus .mark{fill:var(--link)}svg a:hover .no{fill:var(--link)}
svg .cursor{stroke:var(--text);stroke-width:1;stroke-dasharray:2 2;pointer-events:none}
td.dots,th.dots{width:440px;min-width:300px;padding-top:2px;padding-bottom:2px}
.dots svg{display:block;width:100%;max-width:420px}
svg .dot{fill:var(--writing);fill-opacity:.5;stroke:var(--writing);stroke-width:1}
svg a:hover .dot{fill-opacity:1}
svg .median{stroke:var(--text);stroke-width:2.5;fill:none}
svg .line{stroke:var(--writing);stroke-width:1.5;fill:none;stroke-linejoin:round;stroke-linecap:round}
.steps{border-top:1px solid var(--line);margin:12px 0;font-size:.9375rem}
.row{display:grid;grid-template-columns:3rem 5rem minmax(10rem,1.3fr) 6.5rem 7.5rem minmax(12rem,2fr) 5.5rem 5.5rem;
gap:0 14px;padding:7px 4px;align-items:start}
.row small{display:block}
.row.head{color:var(--quiet);font-size:.8125rem;font-weight:600;align-items:end;border-bottom:1px solid var(--line)}
.row.head span:nth-child(n+7){text-align:right}
.row .did:nth-child(5){grid-column:span 4}
details.step{border-bottom:1px solid var(--faint)}
summary{cursor:pointer}summary::-webkit-details-marker{display:none}details.step summary{list-style:none}
details.step summary:hover,details.step[open] summary{background:var(--panel)}
.number{font-weight:600;white-space:nowrap}
.number::before{content:"▸";display:inline-block;width:1.1em;color:var(--quiet)}[open]>.row .number::before{content:"▾"}
.inside{padding:4px 4px 16px 3rem}
.filter{display:none;margin:8px 0;font-size:.9375rem}.js .filter{display:block}
select{font:inherit;color:inherit;background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:3px 8px}
#tip{position:fixed;z-index:9;pointer-events:none;background:var(--text);color:var(--page);font-size:.8125rem;line-height:1.4;
padding:6px 10px;border-radius:6px;max-width:320px;white-space:pre-line}
dl.terms{display:grid;grid-template-columns:minmax(8rem,auto) 1fr;gap:4px 20px;font-size:.9375rem;max-width:90ch}
dl.terms dt{font-weight:600}dl.terms dd{margin:0}
footer{padding-top:32px;padding-bottom:48px;color:var(--quiet);font-size:.8125rem}
@media (max-width:900px){
.row{grid-template-columns:3rem 1fr auto;gap:2px 12px}
.row.head{display:none}
.row>span{grid-column:2/-1}
.row>.number{grid-column:1}.row>span:nth-child(2){grid-column:3;grid-row:1}.row>span:nth-child(3){grid-column:2;grid-row:1}
.row>[data-label]:not(:nth-child(2))::before{content:attr(data-label) " ";color:var(--quiet)}
.row [data-label] small{display:inline;margin-left:.5em}.row .n{text-align:left}
.inside{padding-left:0}
}
@media (max-width:640px){main,header,footer{padding-left:16px;padding-right:16px}.verdict{padding:16px 18px}
.verdict b{font-size:1.4rem}.verdict p{font-size:1.0625rem}h2{margin-top:40px}th,td{padding:6px 8px}
.legend{grid-template-columns:1fr}.legend ul{margin-bottom:6px}dl.terms{grid-template-columns:1fr}dl.terms dd{margin-bottom:8px}
.tiles{grid-template-columns:1fr 1fr}.tiles dd{font-size:1.25rem}}
@media print{@page{margin:12mm}body{font-size:12px}main,header,footer{max-width:none;padding:0}nav,.filter,#tip{display:none!important}
.wide{overflow:visible}svg.strip{min-width:0;break-inside:avoid}tr,.example,details.step{break-inside:avoid}
h2,h3{break-after:avoid}svg,.verdict,.tiles div,td,.legend{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

SCRIPT = """
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
  })].join('\\n');
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
      tip.textContent = told(ms) + (title ? '\\n' + title.textContent : '');
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
"""
