// The reader's selection, and redrawing after a change.

const byId = id => document.getElementById(id);
const state = {
    panel: data.first_panel, peek: -1, // the chosen map; the one under the pointer in the overview
    row: -1, col: -1,            // the chosen cell, as indices of items (not of the view)
    hover: null, locked: false,  // {row, col} under the pointer; whether the pointer is ignored
    cmap: data.cmap, scale: data.scale, range: data.range,
    hidden: new Set(), rescale: canRescale, numbers: data.values !== "never",
    wholeRow: false, twin: true, rowOnly: false, // the whole row as a table; twin; other rows dim
    view: data.view,             // "map", "lines", "model" or "neurons"
    beside: -1,                  // a second map beside the large one
    lit: new Set(),              // maps of the chosen map's group whose lines are drawn
    side: null,                  // of lines: "row" or "col", the side of the chosen token
    between: "all",              // the texts between which lines are drawn: "ab" ...
    frame: -1, role: null, order: "index",       // -1: the figure itself
    zoom: 1, top: 0, left: 0, find: "", dark: false
};

const shownPanel = () => state.peek >= 0 ? state.peek : state.panel;
const cursor = () => state.locked || !state.hover ? state : state.hover;

// Hooks of a live page: live.js.
let live = null;

// Scales are valid until something that they depend on changes. In a playback a scale covers all
// frames, so that a colour means the same in each frame.
const scales = new Map();
function scaleOf(i) {
    const key = state.range === "panel" ? i : -1;
    if (!scales.has(key)) {
        const list = key < 0 ? panels.map((_, k) => k) : [i];
        const others = state.frame < 0 || view.hiding ? list.map(k => panels[k])
            : list.flatMap(k => [panels[k], ...frames.map(f => f.maps[k]).filter(Boolean)]);
        scales.set(key, makeScale(list.map(sourceOf), scaleOptions(), others));
    }
    return scales.get(key);
}

const scaleOptions = () => ({kind: state.scale, cmap: state.cmap, range: state.range});

function twinScaleOf(i) {
    if (state.beside >= 0) return scaleOf(state.beside);
    const key = state.range === "panel" ? `twin ${i}` : "twin";
    if (!scales.has(key)) {
        const list = state.range === "panel" ? [panels[i].twin] : panels.map(p => p.twin);
        scales.set(key, makeScale(list.filter(Boolean), {...scaleOptions(), range: "own"}));
    }
    return scales.get(key);
}

// The colours of the page, resolved for the canvas in the current theme.
let theme = null;
function readTheme() {
    const probe = byId("live"), read = name => {
        probe.style.color = `var(--${name})`;
        return getComputedStyle(probe).color;
    };
    theme = {ink: read("ink"), muted: read("muted"), paper: read("paper"), frame: read("frame"),
        accent: read("accent"), maskPaper: read("mask-paper"), maskLine: read("mask-line"),
        bad: read("bad"), above: read("series-0"), below: read("series-1")};
    probe.style.color = "";
    rgbCache.clear();
}

const palette = () => paletteOf(state.cmap, state.dark);
const lookOf = (source, scale, ratio) => ({scale, palette: palette(), theme, ratio,
    numbers: state.numbers, reach: reachOf(source), found: state.find ? isFound : null});

const isFound = item => state.find !== "" && item.all.toLowerCase().includes(state.find);

// Redraw everything, the large map with its readouts, or the selected place.
function drawAll() {
    if (!panels.length) return;
    scales.clear();
    if (!theme) readTheme();
    drawOverview();
    drawFocus();
    drawCurves();
}

function drawFocus() {
    drawTitle();
    drawLegend();
    if (state.view === "map") drawMap();
    drawCursor();
    drawNotes();
    live?.shown();
}

// Draw the large picture of the selected view.
function drawPicture() {
    if (state.view === "map") drawMap();
    else if (state.view === "lines") drawLines();
    else if (state.view === "neurons") drawNeurons();
}

function drawCursor() {
    if (state.view === "map") drawMarks();
    else drawPicture();
    drawReadout();
    drawStrips();
    drawBarMark();
    drawTable();
    rememberPlace();
    live?.moved();
}

// Convert a cell of the figure that the data names to indices of items.
function chooseCell(cell) {
    [state.row, state.col] = cell.map(at => Math.floor(at * data.cell_tokens / block));
    keepCellInView();
}

// Choose the link that the map's card names first (mha_figure_links), or the first cell if there is
// none.
const chooseStrongestCell = () => chooseCell(panels[state.panel].link.map(at => Math.max(at, 0)));

function chooseFirstCell() {
    if (data.first_row < 0) chooseStrongestCell();
    else chooseCell([data.first_row, data.first_col]);
}

// Keep the chosen cell in view after tokens were hidden.
function keepCellInView() {
    const nearest = (list, at) => list.length
        ? list.reduce((best, v) => Math.abs(v - at) < Math.abs(best - at) ? v : best) : -1;
    state.row = nearest(view.rows, state.row);
    state.col = nearest(view.cols, state.col);
    state.hover = null;
}

function choosePanel(i) {
    const before = state.panel;
    state.panel = Math.min(Math.max(i, 0), panels.length - 1);
    state.peek = -1;
    if (state.panel !== before) followPanel(before);
    markThumbs();
    markScores();
    drawFocus();
    const panel = panels[state.panel];
    say(`${[panel.name, panel.badge].filter(Boolean).join(", ")}. ${cellText(cursor())}`);
}

// A newly chosen map shows its strongest cell, unless a cell is locked. Its lines replace those of
// the previous map.
function followPanel(before) {
    if (!state.locked) chooseStrongestCell();
    const alone = state.lit.size <= 1 || panels[state.panel].group !== panels[before].group;
    if (alone) state.lit = new Set([state.panel]);
    else state.lit.add(state.panel);
    if (state.view === "neurons" && !panels[state.panel].channels) setView("map");
}

// Choose the next or previous map in the order of display, among those of the chosen role.
function stepPanel(by) {
    const list = shownOrder(), at = list.indexOf(state.panel);
    choosePanel(list[Math.min(Math.max(at < 0 ? 0 : at + by, 0), list.length - 1)]);
}

// Choose the map at the same position in the next or previous group.
function chooseGroup(step) {
    const here = panels[state.panel], groups = groupList();
    const at = groups.findIndex(g => g.group === here.group);
    const target = groups[at + step];
    if (!target) return;
    const inGroup = groups[at].list.indexOf(state.panel);
    choosePanel(target.list[Math.min(inGroup, target.list.length - 1)]);
}

let groupCache = null;
function groupList() {
    if (!groupCache) {
        const groups = new Map();
        panels.forEach((panel, i) => {
            if (!groups.has(panel.group)) groups.set(panel.group, []);
            groups.get(panel.group).push(i);
        });
        groupCache = [...groups].sort((a, b) => a[0] - b[0]).map(([group, list]) =>
            ({group, list, name: given(data.groups?.[group] ?? (groups.size > 1 ? String(group) : ""))}));
    }
    return groupCache;
}

function say(text) { byId("live").textContent = text; }
