"use strict";
// Draws the calls of DATA (data.js) by uPlot. Nothing is fetched: it works from disk.

const element = (id) => document.getElementById(id);
const suite = element("suite"), functions = element("function"), dtype = element("dtype"), rows = element("rows");
const measure = element("measure"), callList = element("call"), plotBox = element("plot");
const MEASURES = {
  rate: { at: 2, name: "GB/s", log: false },
  ratio: { at: 3, name: "time / limit", log: true },
  time: { at: 1, name: "us", log: true },
};
// Who is shown at first, where there are many.
const USUAL = ["limit", "softgen", "torch", "torch.compile", "quack", "liger"];
let calls = [], peers = [], shown = new Set(), chosen = 0, plot = null;

function option(value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  return made;
}

function fill(select, values, keep, texts) {
  select.replaceChildren(...values.map((value, i) => option(value, texts ? texts[i] : value)));
  if (values.map(String).includes(keep)) select.value = keep;
}

const distinct = (values) => [...new Set(values)];
const data = () => DATA.suites.find((each) => each.name === suite.value);
const size = (call) => call.case || `${call.rows} x ${call.cols}`;
const label = (call) => `${call.dtype} ${size(call)}`;

/** Offer what the suite has, and keep what was chosen where it has that. */
function offer() {
  const every = data().calls;
  fill(functions, distinct(every.map((c) => c.function)), functions.value);
  const of = every.filter((c) => c.function === functions.value);
  const types = distinct(of.map((c) => c.dtype));
  fill(dtype, types.length > 1 ? ["all", ...types] : types, dtype.value);
  const typed = of.filter((c) => dtype.value === "all" || c.dtype === dtype.value);
  const counts = distinct(typed.map((c) => c.rows)).sort((a, b) => a - b);
  fill(rows, counts.length > 1 ? ["all", ...counts] : counts, rows.value);
  calls = typed.filter((c) => rows.value === "all" || String(c.rows) === rows.value);
  calls = [...calls].sort((a, b) => place(a) - place(b) || a.rows - b.rows);
  peers = distinct(calls.flatMap((c) => c.peers.map((p) => p[0])));
  peers.sort((a, b) => rank(a) - rank(b));
  const usual = peers.filter((p) => USUAL.includes(p));
  shown = new Set(usual.length > 2 ? usual : peers.slice(0, 6));
  chosen = 0;
  boxes();
  draw();
}

const rank = (peer) => (USUAL.includes(peer) ? USUAL.indexOf(peer) : USUAL.length);
const alone = () => distinct(calls.map((c) => c.rows)).length === 1;
const place = (call) => call.cols * (rows.value === "all" ? call.rows : 1);
const colour = (i) => getComputedStyle(document.documentElement).getPropertyValue(`--c${i}`).trim();
// softgen has the first colour, the limit the second.
const hue = (peer) => (peer === DATA.softgen ? 0 : peer === DATA.limit ? 1 : 2 + (beside().indexOf(peer) % 8));
const beside = () => peers.filter((p) => p !== DATA.softgen && p !== DATA.limit);

function boxes() {
  const legend = element("peers").querySelector("legend");
  const made = peers.map((peer) => {
    const box = document.createElement("input"), wrap = document.createElement("label"), dot = document.createElement("i");
    box.type = "checkbox";
    box.name = peer;
    box.checked = shown.has(peer);
    box.addEventListener("change", () => {
      if (box.checked) shown.add(peer);
      else shown.delete(peer);
      draw();
    });
    dot.style.background = `var(--c${hue(peer)})`;
    wrap.append(box, " ", dot, peer);
    return wrap;
  });
  element("peers").replaceChildren(legend, ...made);
}

const figure = (call, peer, at) => {
  const found = call.peers.find((p) => p[0] === peer);
  return found && found[at] !== null ? found[at] : null;
};

/** Where each call stands on the x axis: those of one place lie beside each other, a little apart. */
function places() {
  let last = 0;
  return calls.map((call) => (last = Math.max(place(call), last * 1.004)));
}

function draw() {
  const { at, name, log } = MEASURES[measure.value];
  const drawn = peers.filter((peer) => shown.has(peer));
  const xs = places();
  const series = drawn.map((peer) => ({
    label: peer,
    stroke: colour(hue(peer)),
    width: alone() && !calls[0].case ? (peer === DATA.softgen ? 2.5 : 1.25) : 0,
    spanGaps: true,
    dash: beside().indexOf(peer) > 7 ? [5, 4] : undefined, // colours begin anew
    points: { show: true, size: peer === DATA.softgen ? 8 : 5, fill: colour(hue(peer)), stroke: colour(hue(peer)) },
  }));
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--dim").trim(), grid = style.getPropertyValue("--line").trim();
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
  if (plot) plot.destroy();
  plot = new uPlot(
    {
      width: plotBox.clientWidth,
      height: Math.max(280, Math.min(460, plotBox.clientWidth * 0.7)),
      scales: {
        x: { time: false, distr: 3, range: (_, low, high) => [low / 1.25, high * 1.25] },
        y: log ? { distr: 3, range: (_, low, high) => [low / 1.1, high * 1.1] } : { range: (_, low, high) => [0, high * 1.05] },
      },
      axes: [
        { ...axis, label: rows.value === "all" ? "rows x columns" : "columns", size: 34, labelSize: 20, splits: powers, filter: (_, all) => all, values: (_, ticks) => ticks.map((t) => (t === null ? "" : short(t))) },
        { ...axis, label: name, size: 60, values: (_, ticks) => ticks.map((t) => (t === null ? "" : String(+t.toPrecision(3)))) },
      ],
      series: [{}, ...series],
      cursor: { drag: { setScale: false }, y: false },
      hooks: { setCursor: [(of) => hover(of.cursor.idx)], draw: [mark] },
    },
    [xs, ...drawn.map((peer) => calls.map((call) => figure(call, peer, at)))],
    plotBox,
  );
  plot.over.addEventListener("click", () => plot.cursor.idx !== null && choose(plot.cursor.idx));
  fill(callList, calls.map((_, i) => i), String(chosen), calls.map(label));
  choose(chosen);
}

/** The powers of two of an axis, eight or so of them. */
function powers(_, __, low, high) {
  const first = Math.ceil(Math.log2(low)), last = Math.floor(Math.log2(high)), step = Math.ceil((last - first + 1) / 8);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 2 ** (first + i * step));
}

function short(number) {
  for (const [unit, name] of [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]]) {
    if (number >= unit && number % unit === 0) return number / unit + name;
  }
  return String(number);
}

function hover(i) {
  if (i === null || i === undefined || !calls[i]) return;
  const { at, name } = MEASURES[measure.value];
  const figures = peers.filter((peer) => shown.has(peer)).map((peer) => [peer, figure(calls[i], peer, at)]).filter(([, value]) => value !== null);
  element("hovered").textContent = `${label(calls[i])}: ${figures.map(([peer, value]) => `${peer} ${value}`).join(", ")} (${name})`;
}

/** A line where the chosen call is. */
function mark(of) {
  const at = Math.round(of.valToPos(of.data[0][chosen], "x", true));
  const { top, height } = of.bbox, context = of.ctx;
  context.save();
  context.strokeStyle = colour(0);
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(at, top);
  context.lineTo(at, top + height);
  context.stroke();
  context.restore();
}

function tell(tag, text, ...inside) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...inside);
  return made;
}

function choose(i) {
  chosen = Math.max(0, Math.min(calls.length - 1, i));
  callList.value = String(chosen);
  const call = calls[chosen];
  plot.redraw(false);
  hover(chosen);
  const sorted = [...call.peers].sort((a, b) => a[1] - b[1]);
  const best = sorted.find((p) => p[0] === DATA.softgen || (DATA.others.includes(p[0]) && p[0] !== DATA.limit));
  const body = sorted.map((p) => {
    const cells = [p[0], p[1], p[2], p[3], p[4] === null ? "" : `${(((p[5] - p[4]) / p[1]) * 100).toFixed(1)}%`].map((cell) => tell("td", cell === null ? "" : String(cell)));
    const row = tell("tr", "", ...cells);
    row.dataset.peer = p[0];
    if (p[0] === DATA.softgen) row.className = "own";
    return row;
  });
  const heads = ["competitor", "us", "GB/s", "/ limit", "spread"].map((name) => tell("th", name));
  const table = tell("table", "", tell("thead", "", tell("tr", "", ...heads)), tell("tbody", "", ...body));
  const wide = tell("div", "", table, tell("small", "spread: from the 20% to the 80% quantile, of the median"));
  wide.className = "wide";
  const of = call.function === "softmax" ? "" : `${call.function}, `;
  const parts = [tell("h2", of + label(call)), tell("p", best ? `The fastest: ${best[0]}, ${best[1]} us.` : ""), wide];
  if (call.setting) parts.push(kernel(call));
  element("chosen").replaceChildren(...parts);
}

/** The winner's name, its settings, the commands, and its text once it is asked for. */
function kernel(call) {
  const list = tell("dl");
  const line = (name, ...value) => list.append(tell("dt", name), tell("dd", "", ...value));
  line("softgen ran", tell("code", call.kernel || call.setting));
  const knobs = Object.entries(call.knobs).map(([name, value]) => `${name} ${value}`);
  if (knobs.length) line("settings", knobs.join(", "));
  const time = `softgen bench --suite ${data().suite}`;
  if (!call.kernel) {
    line("time it", tell("code", time));
    return list;
  }
  if (!call.case) {
    const words = [`--rows ${call.rows}`, `--cols ${call.cols}`, `--dtype ${call.dtype}`, `--variant ${call.kernel}`];
    line("run it", tell("code", `softgen run --function ${call.function} ${words.join(" ")}`));
  }
  line("read it", tell("code", `softgen show ${call.kernel}`));
  line("time it", tell("code", time));
  const text = tell("pre", "…"), details = tell("details", "", tell("summary", "The CUDA file"), text);
  text.tabIndex = 0;
  text.id = "emitted";
  details.addEventListener("toggle", () => details.open && load(call.kernel, text), { once: true });
  const all = tell("div", "", list, details);
  return all;
}

const waiting = {};
/** Called by the files in sources/. */
function emitted(name, text) {
  waiting[name].textContent = text;
}

function load(name, into) {
  waiting[name] = into;
  const script = document.createElement("script");
  script.src = `sources/${name}.js`;
  script.addEventListener("error", () => (into.textContent = "The file is not beside this page."));
  document.head.append(script);
}

function start() {
  fill(suite, DATA.suites.map((each) => each.name));
  suite.value = DATA.suites.some((each) => each.name === "triton") ? "triton" : DATA.suites[0].name;
  const about = () => {
    const { device, driver, versions, name } = data();
    element("origin").textContent = `${name}.csv: one ${device}, driver ${driver}; ${versions}. Medians of device time.`;
  };
  for (const select of [suite, functions, dtype, rows]) select.addEventListener("change", () => (about(), offer()));
  measure.addEventListener("change", draw);
  callList.addEventListener("change", () => choose(Number(callList.value)));
  element("choice").addEventListener("submit", (event) => event.preventDefault());
  plotBox.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(chosen + step);
  });
  new ResizeObserver(() => plot && plot.width !== plotBox.clientWidth && draw()).observe(plotBox);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  about();
  offer();
}

start();
