// Rows and columns as two columns of tokens, with a line for each cell whose strength is its value.
// The large drawing shows the lit maps of a group in colours; small drawings show all maps in the
// model view.

const MOST_LINES = 3000, MOST_SMALL_LINES = 400; // per map: the strongest lines
const TOKEN_LEAST = 13, TOKEN_MOST = 24;         // height of a token

let linePlace = null;

// -- selection of lines --------------------------------------------------------------------------

const groupOf = i => groupList().find(g => g.group === panels[i].group);

// Hues a golden angle apart, so that neighbours differ clearly for any number of maps.
function lineColor(i) {
    const hue = Math.round((222 + 137.508 * groupOf(i).list.indexOf(i)) % 360);
    return `hsl(${hue} ${state.dark ? "80% 70%" : "75% 42%"})`;
}

// The strength of a value's line, 0 .. 1.
function strengthOf(scale) {
    if (scale.kind === "log" || scale.kind === "rank") return v => scale.position(v);
    const most = bend(scale.kind, Math.max(Math.abs(scale.lo), Math.abs(scale.hi)));
    return v => Math.min(Math.abs(bend(scale.kind, v)) / most, 1);
}

// Whether to draw a line from a row to a column, by the texts that they belong to.
function isBetween(r, c) {
    if (state.between === "all" || !data.second_row) return true;
    const a = r < data.second_row ? "a" : "b", b = c < data.second_col ? "a" : "b";
    return state.between === a + b;
}

// The strongest cells of a map, weakest first, and the number of cells that are not 0.
const strongest = new Map();
function strongestCells(map, most) {
    const key = `${state.between} ${most}`, known = strongest.get(map);
    if (known?.key === key) return known;
    const cells = [], bins = new Uint32Array(4096);
    let top = 0;
    for (let k = 0; k < map.value.length; k++) {
        const size = Math.abs(map.value[k]);
        if (!size || (map.kind && map.kind[k] !== VALUE)) continue;
        if (!isBetween(view.rows[Math.floor(k / map.cols)], view.cols[k % map.cols])) continue;
        cells.push(k);
        if (size > top) top = size;
    }
    const binOf = k => Math.min(Math.floor(Math.abs(map.value[k]) / top * 4096), 4095);
    for (const k of cells) bins[binOf(k)]++;
    let least = 4095, sum = bins[4095] ?? 0;
    while (least > 0 && sum + bins[least - 1] <= most) sum += bins[--least];
    const list = cells.filter(k => binOf(k) >= least).slice(0, most)
        .sort((a, b) => Math.abs(map.value[a]) - Math.abs(map.value[b]));
    const found = {key, list, all: cells.length};
    strongest.set(map, found);
    return found;
}

// The token whose lines are drawn exclusively: {side: "row" or "col", at: index of the item}, or
// null.
function lineFocus() {
    if (state.locked) return {side: state.side ?? "row", at: state[state.side ?? "row"]};
    return state.hover && state.side ? {side: state.side, at: state.hover[state.side]} : null;
}

// -- drawing -------------------------------------------------------------------------------------

function placeLines() {
    const width = Math.max(byId("lines").clientWidth, 200), longest =
        Math.max(view.rows.length, view.cols.length, 1);
    const room = data.only_view ? roomBelow(byId("lines")) : Math.min(innerHeight * 0.8, 900);
    const h = Math.min(Math.max((room - 8) / longest, TOKEN_LEAST), TOKEN_MOST);
    const widest = items => items.length > 2000 ? Infinity
        : items.reduce((most, item) => Math.max(most, widthOf(item.text, 12)), 0);
    const [rows, cols] = itemsInView(), most = Math.min(width * 0.3, 190);
    const left = Math.min(widest(rows), most) + 14, right = Math.min(widest(cols), most) + 14;
    const gap = Math.min(Math.max(width - left - right - 2 * NUMBER_WIDTH, 60), 460);
    return {rows, cols, h, width, x1: left + NUMBER_WIDTH, x2: left + NUMBER_WIDTH + gap, left, right,
        height: Math.ceil(longest * h + 8), size: Math.min(12, h - 1)};
}
const NUMBER_WIDTH = 52;

const lineY = (p, at) => 4 + (at + 0.5) * p.h;

function drawLines() {
    if (state.view !== "lines") return;
    drawLineTools();
    const p = linePlace = placeLines(), i = shownPanel(), focus = lineFocus();
    const {context, top, height} = openScroll("lines", p.width, p.height);
    const lit = litPanels(i);
    for (const panel of lit) paintLines(context, p, panel, focus, top, height, 1);
    if (focus) paintFocusBars(context, p, lit, focus, top, height);
    paintTokens(context, p, focus, top, height);
}

// Only the map under the pointer, or the lit maps.
const litPanels = i => state.peek >= 0 ? [i] : [...state.lit].sort((a, b) => a - b);

function cellsOfFocus(map, focus) {
    const at = (focus.side === "row" ? view.rows : view.cols).indexOf(focus.at);
    const count = at < 0 ? 0 : focus.side === "row" ? map.cols : map.rows;
    const list = Array.from({length: count},
        (_, k) => focus.side === "row" ? at * map.cols + k : k * map.cols + at);
    return list.filter(k => !map.kind || map.kind[k] === VALUE);
}

function paintLines(context, p, i, focus, top, height, width) {
    const map = mapOf(i), strength = strengthOf(scaleOf(i));
    const list = focus ? cellsOfFocus(map, focus) : strongestCells(map, MOST_LINES).list;
    context.strokeStyle = lineColor(i);
    context.lineWidth = width * (focus ? 2 : 1.5);
    for (const k of list) {
        const y1 = lineY(p, Math.floor(k / map.cols)), y2 = lineY(p, k % map.cols);
        if (Math.max(y1, y2) < top || Math.min(y1, y2) > top + height) continue;
        const alpha = strength(map.value[k]);
        if (alpha < 1 / 255) continue;
        context.globalAlpha = alpha;
        context.setLineDash(map.value[k] < 0 ? [4, 3] : []);
        context.beginPath();
        context.moveTo(p.x1, y1);
        context.lineTo(p.x2, y2);
        context.stroke();
    }
    context.globalAlpha = 1;
    context.setLineDash([]);
}

// Paint beside the tokens of the other side a bar for each map, and the largest number.
function paintFocusBars(context, p, lit, focus, top, height) {
    const toCols = focus.side === "row", count = toCols ? p.cols.length : p.rows.length;
    const room = toCols ? p.right : p.left, best = new Map();
    lit.forEach((i, n) => {
        const map = mapOf(i), strength = strengthOf(scaleOf(i)), each = room / lit.length;
        context.fillStyle = lineColor(i);
        for (const k of cellsOfFocus(map, focus)) {
            const at = toCols ? k % map.cols : Math.floor(k / map.cols), y = 4 + at * p.h;
            if (y + p.h < top || y > top + height) continue;
            context.globalAlpha = 0.75 * strength(map.value[k]);
            context.fillRect((toCols ? p.x2 + 2 : p.x1 - 2 - room) + n * each, y + 0.5, each, p.h - 1);
            if (Math.abs(map.value[k]) > Math.abs(best.get(at)?.value ?? 0))
                best.set(at, {value: map.value[k], i});
        }
    });
    context.globalAlpha = 1;
    const most = Math.max(...[...best.values()].map(b => Math.abs(b.value)), 0);
    for (const [at, {value, i}] of best) {
        if (at >= count || Math.abs(value) < most / 1000) continue;
        const text = exactly(value, 0), surface = new CanvasSurface(context);
        surface.text(toCols ? p.x2 + p.right + 6 : p.x1 - p.left - 6, lineY(p, at) + 4, text,
            {size: Math.min(11, p.size), color: lit.length > 1 ? lineColor(i) : theme.muted,
                anchor: toCols ? "start" : "end"});
    }
}

function paintTokens(context, p, focus, top, height) {
    const surface = new CanvasSurface(context), sides = [[p.rows, view.rows, "row"],
        [p.cols, view.cols, "col"]];
    for (const [items, places, side] of sides)
        for (let k = Math.max(0, Math.floor((top - 4) / p.h)); k < items.length; k++) {
            const y = lineY(p, k), chosen = focus?.side === side && focus.at === places[k];
            if (y - p.h > top + height) break;
            const text = cutTo(items[k].text, p.size, (side === "row" ? p.left : p.right) - 12);
            const x = side === "row" ? p.x1 - 7 : p.x2 + 7;
            if (chosen) paintChosen(context, p, side, y);
            const color = chosen ? theme.paper : isFound(items[k]) ? theme.accent : theme.ink;
            surface.text(x, y + p.size * 0.36, text, {size: p.size, color,
                anchor: side === "row" ? "end" : "start", bold: chosen || isFound(items[k])});
        }
}

function paintChosen(context, p, side, y) {
    context.fillStyle = theme.accent;
    context.beginPath();
    const room = side === "row" ? p.left : p.right;
    context.roundRect(side === "row" ? p.x1 - 2 - room : p.x2 + 2, y - p.h / 2 + 0.5, room, p.h - 1, 3);
    context.fill();
}

// Paint one map of the model view.
function paintSmallLines(context, i, width, height) {
    const map = smallMapOf(i), strength = strengthOf(scaleOf(i)), {list} =
        strongestCells(map, MOST_SMALL_LINES);
    const longest = Math.max(map.rows, map.cols, 1), step = (height - 4) / longest;
    context.strokeStyle = lineColor(i);
    for (const k of list) {
        context.globalAlpha = strength(map.value[k]);
        context.beginPath();
        context.moveTo(2, 2 + (Math.floor(k / map.cols) + 0.5) * step);
        context.lineTo(width - 2, 2 + (k % map.cols + 0.5) * step);
        context.stroke();
    }
    context.globalAlpha = 1;
}

// -- a window on a long drawing ------------------------------------------------------------------

// The height of the window below the top of a box, minus a line of text.
const roomBelow = box =>
    Math.max(innerHeight - box.getBoundingClientRect().top - scrollY - 56, 160);

// The canvas of a scrolled box has the height of the box; drawing starts at the scroll position.
function openScroll(name, width, height) {
    const box = byId(name), canvas = box.querySelector("canvas");
    box.firstElementChild.style.height = `${height}px`;
    if (data.only_view) box.style.maxHeight = `${roomBelow(box)}px`;
    const shown = Math.max(Math.min(height, box.clientHeight || height), 1), top = box.scrollTop;
    const context = sizeCanvas(canvas, width, shown, ratioNow());
    context.translate(0, -top);
    return {context, top, height: shown};
}

// -- controls for maps, layers and texts ---------------------------------------------------------

function drawLineTools() {
    const group = groupOf(state.panel), box = byId("lines-heads");
    const key = `${group.group} ${state.dark} ${[...state.lit].join(" ")}`;
    byId("lines-layer").value = String(group.group);
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    const had = box.contains(document.activeElement) && document.activeElement.dataset.panel;
    box.replaceChildren(...group.list.map(i => {
        const square = make("button", "square"), lit = state.lit.has(i), name = panels[i].name;
        square.type = "button";
        square.dataset.panel = i;
        square.style.setProperty("--color", lineColor(i));
        square.title = t("lines.square.title", {map: name});
        square.setAttribute("aria-label", t("lines.square", {map: name}));
        square.setAttribute("aria-pressed", String(lit));
        square.addEventListener("click", () => toggleLit(i));
        square.addEventListener("dblclick", () => lightOnly([i]));
        return square;
    }), make("span", "small", litText(group)));
    box.querySelector(`[data-panel="${had}"]`)?.focus();
}

function litText(group) {
    const names = group.list.filter(i => state.lit.has(i)).map(i => panels[i].name);
    return names.length > 4 ? t("lines.lit", {n: names.length, all: group.list.length}) : names.join(" ");
}

function toggleLit(i) {
    if (state.lit.has(i)) state.lit.delete(i);
    else state.lit.add(i);
    if (state.lit.has(i) && state.panel !== i) showPanel(i);
    drawFocus();
    say(t(state.lit.has(i) ? "lines.on" : "lines.off", {map: panels[i].name}));
}

function lightOnly(list) {
    state.lit = new Set(list);
    showPanel(list[0]);
    drawFocus();
}

// Choose a map without changing the cell and the lines.
function showPanel(i) {
    state.panel = i;
    markThumbs();
    markScores();
}

function buildLines() {
    const groups = groupList(), box = byId("lines");
    byId("lines-layer-line").hidden = groups.length < 2;
    for (const g of groups)
        byId("lines-layer").append(new Option(g.name || String(g.group), String(g.group)));
    byId("lines-layer").addEventListener("change", event => {
        const g = groups.find(g => String(g.group) === event.target.value);
        const places = new Set([...state.lit].map(i => groupOf(i).list.indexOf(i)));
        lightOnly(g.list.filter((_, k) => places.has(k)).concat(g.list[0]).slice(0, places.size || 1));
    });
    byId("lines-all").addEventListener("click", () => {
        const {list} = groupOf(state.panel), all = list.every(i => state.lit.has(i));
        lightOnly(all ? [state.panel] : list);
    });
    byId("lines-between").hidden = !data.second_row && !data.second_col;
    byId("lines-between").addEventListener("change", event => {
        state.between = event.target.value;
        drawAll();
    });
    box.addEventListener("scroll", drawLines);
    box.addEventListener("pointermove", onLinesMove);
    box.addEventListener("pointerleave", onLinesLeave);
    box.addEventListener("click", onLinesPick);
    box.addEventListener("keydown", onLinesKey);
}

// -- pointer and keys ----------------------------------------------------------------------------

function tokenAt(event) {
    const p = linePlace, box = byId("lines").getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top + byId("lines").scrollTop;
    const side = x < p.x1 + 8 ? "row" : x > p.x2 - 8 ? "col" : null;
    const at = (side === "row" ? view.rows : view.cols)[Math.floor((y - 4) / p.h)];
    return side && at !== undefined ? {side, at} : null;
}

function onLinesMove(event) {
    const token = linePlace && tokenAt(event), now = lineFocus();
    if (state.locked || (token?.side === now?.side && token?.at === now?.at)) return;
    state.side = token?.side ?? null;
    state.hover = token && {row: state.row, col: state.col, [token.side]: token.at};
    drawCursor();
}

function onLinesLeave() {
    if (!state.hover) return;
    state.hover = null;
    if (state.locked) return;
    state.side = null;
    drawCursor();
}

function onLinesPick(event) {
    const token = linePlace && tokenAt(event);
    if (token) pickToken(token, state.locked && state.side === token.side &&
        state[token.side] === token.at);
    else if (state.locked) setLock(false);
}

function pickToken({side, at}, again) {
    state.side = side;
    state[side] = at;
    setLock(!again);
}

function onLinesKey(event) {
    const focus = lineFocus() ?? {side: "row", at: state.row};
    const list = focus.side === "row" ? view.rows : view.cols, k = list.indexOf(focus.at);
    const steps = {ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -Infinity,
        End: Infinity};
    if (event.key in steps && list.length) {
        const next = Math.min(Math.max((lineFocus() ? k : -1) + steps[event.key], 0), list.length - 1);
        pickToken({side: focus.side, at: list[next]}, false);
        scrollToToken(next);
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const side = event.key === "ArrowLeft" ? "row" : "col";
        pickToken({side, at: state[side]}, false);
    } else if (event.key === "Enter" || event.key === " ") setLock(!state.locked);
    else return;
    event.preventDefault();
}

function scrollToToken(k) {
    const box = byId("lines"), y = lineY(linePlace, k);
    if (y < box.scrollTop + 12 || y > box.scrollTop + box.clientHeight - 12)
        box.scrollTop = y - box.clientHeight / 2;
}

function linesNote() {
    const most = data.only_view ? [] : litPanels(shownPanel()).map(i =>
        strongestCells(mapOf(i), MOST_LINES)).filter(found => found.all > MOST_LINES);
    return most.length ? t("lines.note", {all: most[0].all.toLocaleString(language),
        n: MOST_LINES.toLocaleString(language)}) : "";
}
