// Line charts as inline SVG. A line and the values follow the pointer, or the arrow keys.

const svgSpace = byId("theme").firstElementChild.namespaceURI;
const CHART = {height: 190, left: 46, right: 12, top: 10, bottom: 34};
const charts = [];

function draw(tag, attributes, ...children) {
    const node = document.createElementNS(svgSpace, tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    node.append(...children);
    return node;
}

function buildCurves() {
    byId("curves").hidden = !data.curves.length;
    data.curves.forEach((curve, i) => {
        const kind = curve.timeline && frames.length ? "chart timeline" : "chart";
        const svg = draw("svg", {class: kind, tabindex: 0, role: "img"});
        const legend = make("div", "chart-legend"), title = make("h3", "", curve.title ?? "");
        if (curve.y_axis) title.append(make("span", "", curve.y_axis));
        const figure = make("figure", "curve", title, svg, legend);
        if (curve.caption) figure.append(make("figcaption", "small", curve.caption));
        const chart = {curve, svg, legend, at: null, i, xs: allX(curve)};
        svg.addEventListener("pointermove", event => pointChart(chart, event));
        svg.addEventListener("pointerleave", () => setChart(chart, null));
        svg.addEventListener("click", () => goTo(chart));
        svg.addEventListener("keydown", event => onChartKey(chart, event));
        svg.addEventListener("blur", () => setChart(chart, null));
        charts.push(chart);
        byId("curves").append(figure);
    });
}

const allX = curve =>
    [...new Set(curve.series.flatMap(s => s.x.filter(v => v !== null)))].sort((a, b) => a - b);

// Round steps, about `count` of them, that cover lo..hi.
function ticksOf(lo, hi, count) {
    const raw = (hi - lo) / count || 1, size = 10 ** Math.floor(Math.log10(raw));
    const each = [1, 2, 2.5, 5, 10].map(m => m * size).find(s => s >= raw * 0.999);
    const ticks = [];
    for (let k = Math.ceil(lo / each - 1e-9); k * each <= hi + each * 1e-9; k++)
        ticks.push(Number((k * each).toPrecision(12)));
    return ticks;
}

// The scales of a chart. The y axis includes 0 if the values come near it.
function axesOf(chart, width) {
    const ys = chart.curve.series.flatMap(s => s.y.filter(v => v !== null));
    let lo = ys.reduce((a, b) => Math.min(a, b), Infinity);
    let hi = ys.reduce((a, b) => Math.max(a, b), -Infinity);
    if (lo > hi) [lo, hi] = [0, 1];
    if (lo > 0 && lo < 0.5 * hi) lo = 0;
    if (lo === hi) [lo, hi] = [Math.min(lo, 0), lo > 0 ? lo : lo + 1];
    const xLo = chart.xs[0] ?? 0, xHi = chart.xs.at(-1) > xLo ? chart.xs.at(-1) : xLo + 1;
    const w = width - CHART.left - CHART.right, h = CHART.height - CHART.top - CHART.bottom;
    return {lo, hi, xLo, xHi, width, w, h,
        x: v => CHART.left + w * (v - xLo) / (xHi - xLo),
        y: v => CHART.top + h * (1 - (v - lo) / (hi - lo))};
}

function drawCurves() {
    for (const chart of charts) drawChart(chart);
}

function drawChart(chart) {
    const width = Math.max(chart.svg.parentElement.clientWidth, 220), {curve, svg} = chart;
    const axes = chart.axes = axesOf(chart, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${CHART.height}`);
    svg.setAttribute("height", CHART.height);
    const parts = [];
    for (const v of ticksOf(axes.lo, axes.hi, 4)) {
        const y = trim(axes.y(v)), at = {x: CHART.left - 6, y: trim(axes.y(v) + 3.5)};
        parts.push(draw("line",
            {class: "grid", x1: CHART.left, x2: width - CHART.right, y1: y, y2: y}));
        parts.push(draw("text", {...at, "text-anchor": "end"}, short(v)));
    }
    for (const v of ticksOf(axes.xLo, axes.xHi, Math.max(2, Math.floor(width / 80))))
        parts.push(draw("text", {x: trim(axes.x(v)), y: CHART.height - 20, "text-anchor": "middle"},
            short(v)));
    parts.push(draw("text", {class: "axis", x: CHART.left + axes.w / 2, y: CHART.height - 4,
        "text-anchor": "middle"}, curve.x_axis ?? ""));
    curve.series.forEach((series, k) => parts.push(...drawSeries(series, k, axes)));
    const overlay = chart.overlay = draw("g", {class: "overlay"});
    svg.replaceChildren(...parts, overlay);
    describeChart(chart);
    setChart(chart, chart.at);
}

// Draw lines between gaps; a single point is a dot.
function drawSeries(series, k, axes) {
    const runs = [[]];
    series.x.forEach((x, i) => {
        if (x === null || series.y[i] === null) runs.push([]);
        else runs.at(-1).push([trim(axes.x(x)), trim(axes.y(series.y[i]))]);
    });
    return runs.filter(run => run.length).map(run => run.length > 1
        ? draw("polyline", {class: lineClass(series, k), points: run.join(" ")})
        : draw("circle", {class: lineClass(series, k), cx: run[0][0], cy: run[0][1], r: 2.5}));
}

const LINES = 5;
const lineClass = (series, k) => `line ${series.baseline ? "baseline" : `line-${k % LINES}`}`;

function describeChart(chart) {
    const {curve} = chart, ends = curve.series.map(s => {
        const last = s.y.findLastIndex(v => v !== null);
        return last < 0 ? s.name : t("curves.end", {name: s.name, value: short(s.y[last])});
    });
    chart.svg.setAttribute("aria-label",
        `${[curve.title, curve.y_axis].filter(Boolean).join(", ")}: ${ends.join("; ")}`);
}

// -- reading -------------------------------------------------------------------------------------

function nearest(list, value) {
    return list.reduce((best, v, i) =>
        Math.abs(v - value) < Math.abs(list[best] - value) ? i : best, 0);
}

function pointChart(chart, event) {
    const {axes, xs, svg} = chart;
    if (!xs.length) return;
    const x = event.clientX - svg.getBoundingClientRect().left;
    setChart(chart, nearest(xs, axes.xLo + (x - CHART.left) / axes.w * (axes.xHi - axes.xLo)));
}

// A click on the chart of a training, or Enter, shows the maps of the nearest snapshot.
function goTo({curve, xs, at}) {
    if (!curve.timeline || !frames.length || at === null) return;
    stop();
    setFrame(nearest(frames.map(frame => frame.at), xs[at]));
    say(frameLabel());
}

function onChartKey(chart, event) {
    if (event.key === "Enter") goTo(chart);
    const end = chart.xs.length - 1, at = chart.at ?? end;
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: end}[event.key];
    if (to === undefined || end < 0) return;
    event.preventDefault();
    setChart(chart, Math.min(Math.max(to, 0), end));
    const x = chart.xs[chart.at];
    say([`${chart.curve.x_axis ?? "x"} ${short(x)}`, ...chart.curve.series.map(series =>
        `${series.name} ${valueText(series, x)}`)].join(", "));
}

function valueText(series, x) {
    const i = series.x.indexOf(x);
    const y = i < 0 ? null : series.y[i];
    if (y === null) return "–";
    return String(Number.isInteger(y) ? y : Number(y.toPrecision(4))); // counts are shown whole
}

// Show the values at x = `at`; null: the legend shows the last values.
function setChart(chart, at) {
    chart.at = at;
    const {axes, curve, xs} = chart, x = at === null ? null : xs[at];
    chart.overlay.replaceChildren(...timelineOf(chart), ...(x === null ? [] : markOf(chart, x)));
    const names = curve.series.map((series, k) => {
        const last = series.x.at(-1), name = make("bdi", "", series.name ?? "");
        const swatch = draw("svg", {width: 18, height: 8, "aria-hidden": "true"},
            draw("line", {class: lineClass(series, k), x1: 0, x2: 18, y1: 4, y2: 4}));
        return make("span", "key", swatch, name, " ", make("b", "", valueText(series, x ?? last)));
    });
    const where = x === null ? [] : [make("span", "at", `${curve.x_axis ?? "x"} ${short(x)}`)];
    chart.legend.replaceChildren(...names, ...where);
    chart.legend.title = axes ? curve.y_axis ?? "" : "";
}

function markOf({axes, curve}, x) {
    const at = trim(axes.x(x)), y2 = CHART.top + axes.h;
    const dots = curve.series.flatMap((series, k) => {
        const i = series.x.indexOf(x);
        if (i < 0 || series.y[i] === null) return [];
        const cy = trim(axes.y(series.y[i]));
        return [draw("circle", {class: lineClass(series, k), cx: at, cy, r: 3})];
    });
    return [draw("line", {class: "mark", x1: at, x2: at, y1: CHART.top, y2}), ...dots];
}

// Show the position of the playback.
function timelineOf({axes, curve}) {
    const at = frames[state.frame]?.at;
    if (!curve.timeline || at === undefined || at === null) return [];
    const x = trim(axes.x(Math.min(Math.max(at, axes.xLo), axes.xHi)));
    return [draw("line", {class: "now", x1: x, x2: x, y1: CHART.top, y2: CHART.top + axes.h})];
}

function drawTimelines() {
    for (const chart of charts) setChart(chart, chart.at);
}
