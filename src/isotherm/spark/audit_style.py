"""Style and script of an audit's report. They are part of the page and load nothing."""

from __future__ import annotations

# With this policy the browser refuses to load anything for the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

STYLE = """
:root{color-scheme:light dark;--text:#1c2733;--soft:#52606d;--page:#fff;--card:#f1f5f8;
--rule:#d9e1e8;--s0:#1f6f8b;--s1:#a05200;--bad:#b3261e;--good:#1e6b3a}
@media (prefers-color-scheme:dark){:root{--text:#e3eaf1;--soft:#a3b1bd;--page:#12181f;
--card:#1c252e;--rule:#33404c;--s0:#6cc3e0;--s1:#f0a35e;--bad:#ff8a80;--good:#7fd49b}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:78rem;margin:0 auto;padding:1.5rem 1rem 4rem;
color:var(--text);background:var(--page)}
h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.6rem 0 .4rem}
p,.causes{max-width:60rem}p{margin:.3rem 0 .8rem}.note,dd.why{color:var(--soft)}
.verdict{max-width:none;font-size:1.1rem;border-left:.3rem solid var(--good);padding:.4rem .8rem;
background:var(--card)}.verdict.bad{border-color:var(--bad)}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:1rem 0}a{color:var(--s0)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.2rem,1fr));gap:.6rem;
margin:1rem 0;padding:0;list-style:none}
.facts li{background:var(--card);border-radius:.4rem;padding:.5rem .8rem;color:var(--soft);
font-size:.9rem}
.facts b{display:block;font-size:1.4rem;line-height:1.3;color:var(--text)}
.facts .bad b{color:var(--bad)}.facts .bad b::after{content:" !"}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));
 gap:1rem 2rem}
figure{margin:.6rem 0;min-width:0}
figcaption{font-weight:600;font-size:.95rem;display:flex;flex-wrap:wrap;gap:0 1rem}
.legend{display:flex;gap:1rem;font-weight:400;color:var(--soft)}
.legend span::before{content:"";display:inline-block;width:1.3em;margin-right:.4em;
vertical-align:.25em;border-top:.18em solid}
.legend .s0::before{border-color:var(--s0)}
.legend .s1::before{border-top:.3em solid var(--s1)}.legend .ahead::before{border-top-style:dashed}
svg{width:100%;height:auto;display:block;overflow:visible}
svg text{font:12.5px system-ui,sans-serif;fill:var(--soft)}svg .shown{fill:var(--text)}
.grid{fill:none;stroke:var(--rule)}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1);stroke-width:3.5;stroke-opacity:.85}
.line.ahead{stroke-dasharray:6 4}.point.s0{fill:var(--s0)}
.hint{fill:transparent}.hint:hover{fill:var(--s0)}.hint.s1:hover{fill:var(--s1)}
.bars{display:grid;grid-template-columns:fit-content(42%) 1fr;gap:.25rem .8rem;margin:.5rem 0;
align-items:center;font-size:.9rem}
.bars dt{text-align:right;overflow-wrap:anywhere}
.bars dd{margin:0;display:flex;align-items:center;gap:.5rem;padding-right:4.8rem}
.bars i{display:block;height:1em;background:var(--s0);border-radius:0 .15em .15em 0;flex:none;
min-width:2px}.bars b{font-weight:400;white-space:nowrap}
.causes{margin:.4rem 0 1rem}.causes dt{font-weight:600}.causes dd{margin:0 0 .3rem 0}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--s0)}
.wide{overflow-x:auto;max-height:32rem;overflow-y:auto;border:1px solid var(--rule);
border-radius:.3rem}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
tr:last-child td{border-bottom:0}tbody tr:hover{background:var(--card)}
th{position:sticky;top:0;background:var(--card);padding:0}
th button{all:unset;box-sizing:border-box;width:100%;cursor:pointer;padding:.35rem .7rem}
button:focus-visible,summary:focus-visible,.wide:focus-visible,a:focus-visible{
outline:2px solid var(--s0);outline-offset:-2px}
th button::after{content:"\\2195";color:var(--soft);margin-left:.35em;font-weight:400}
th[aria-sort=ascending] button::after{content:"\\2191";color:var(--text)}
th[aria-sort=descending] button::after{content:"\\2193";color:var(--text)}
.text{text-align:left}td.id{font-family:ui-monospace,monospace;font-size:.95em}
@media print{.wide{max-height:none;overflow:visible}nav{display:none}}
"""

# A click on a column's head sorts by it, a second click reverses the order. data-v is a cell's sort
# key if that is not its text.
SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    };
    for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    body.append(...[...body.rows].sort(compare));
  });
}
"""
