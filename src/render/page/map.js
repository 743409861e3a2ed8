// The large map: drawing, pointer, tooltip, and one live cell for keyboards and screen readers.

let place = null, twinPlace = null; // positions of the map and its twin, from placeMap()
const ratioNow = () => Math.max(1, Math.min(window.devicePixelRatio || 1, 4));

function sizeCanvas(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
}

function itemsInView() {
    return [view.rows.map(i => rowItems[i]), view.cols.map(i => colItems[i])];
}

function drawMap() {
    const i = shownPanel(), [rows, cols] = itemsInView(), empty = !rows.length || !cols.length;
    byId("nothing").hidden = !empty;
    for (const id of ["cells", "marks", "grid"]) byId(id).hidden = empty;
    place = twinPlace = null;
    const twin = empty ? null : shownTwin(i);
    byId("twin").hidden = byId("map-head").hidden = !twin;
    if (empty) {
        byId("nothing").textContent = data.rows && data.cols && panels.length
            ? t("map.hidden") : t("map.empty");
        return;
    }
    placeBoth(mapOf(i), twin && mapFrom(twin), rows, cols);
    [state.top, state.left] = [place.r0, place.c0];
    paintOn("cells", "marks", place, lookOf(sourceOf(i), scaleOf(i), ratioNow()));
    if (twin) {
        paintOn("twin-cells", "twin-marks", twinPlace, lookOf(twin, twinScaleOf(i), ratioNow()));
        drawMapHeads(i);
    }
    placeGrid();
    drawZoom();
}

const shownTwin = i => state.twin || state.beside >= 0 ? twinOf(i) : null;

function paintOn(cells, marks, placed, look) {
    const context = sizeCanvas(byId(cells), placed.width, placed.height, look.ratio);
    sizeCanvas(byId(marks), placed.width, placed.height, look.ratio);
    paintMap(new CanvasSurface(context), placed, look);
}

// Place both maps beside each other with one set of row labels, or one below the other if the
// window is too narrow.
const BESIDE = 600, BETWEEN = 18;
function placeBoth(map, twin, rows, cols) {
    const width = Math.max(byId("maps").clientWidth, 200), height = mapHeight(width);
    const options = {zoom: state.zoom, top: state.top, left: state.left, ratio: ratioNow(),
        share: view.hiding};
    const beside = Boolean(twin) && width >= BESIDE;
    byId("maps").classList.toggle("beside", beside);
    if (!beside) {
        place = placeMap(map, rows, cols, width, height, options);
        if (twin) twinPlace = placeMap(twin, rows, cols, width, height, options);
        return;
    }
    const labels = placeMap(map, rows, cols, width / 2, height, options).x;
    const share = view.hiding ? HIDDEN_WIDTH : 0;
    const cells = (width - BETWEEN - labels - TWIN_LEFT - share - 24) / 2;
    place = placeMap(map, rows, cols, labels + cells + share + 12, height, options);
    twinPlace = placeMap(twin, rows, cols, TWIN_LEFT + cells + 12, height,
        {...options, share: false, bare: true});
}

// Draw the names of the map and its twin, each with its own range.
function drawMapHeads(i) {
    drawMapHead(byId("map-head"), state.beside >= 0 ? panels[i].name : valueWord, "", scaleOf(i),
        place.x);
    const value = state.beside >= 0 ? valueWord : given(data.twin_value ?? "");
    drawMapHead(byId("twin-head"), twinName(), value, twinScaleOf(i), twinPlace.x);
}

function drawMapHead(box, name, value, scale, left) {
    const canvas = make("canvas", ""), context = canvas.getContext("2d");
    [canvas.width, canvas.height] = [64, 1];
    for (let k = 0; k < 64; k++) {
        context.fillStyle = cssColor(palette(), Math.round(k * 255 / 63));
        context.fillRect(k, 0, 1, 1);
    }
    box.style.paddingLeft = `${left}px`;
    box.replaceChildren(make("b", "", name), make("span", "", value === name ? "" : value),
        make("span", "mini", short(scale.lo), canvas, short(scale.hi)));
}

const mapHeight = width =>
    Math.max(280, Math.min(width * 0.94, Math.max(420, window.innerHeight * 0.82)));

// The focusable element covers the cells.
function placeGrid() {
    const grid = byId("grid"), i = shownPanel(), r = reachOf(sourceOf(i));
    const box = {left: place.x, top: place.y, width: place.w, height: place.h};
    for (const side in box) grid.style[side] = box[side] + "px";
    grid.setAttribute("aria-rowcount", place.rows.length);
    grid.setAttribute("aria-colcount", place.cols.length);
    grid.setAttribute("aria-label", t("map.size", {map: panels[i].name, rows: place.rows.length,
        row: given(data.row_axis), columns: place.cols.length, column: given(data.col_axis),
        value: valueWord, low: short(r.least), high: short(r.greatest)}));
}

function drawZoom() {
    const useful = place.base < 14;
    byId("zoom").hidden = !useful && state.zoom === 1;
    byId("zoom-text").textContent = state.zoom === 1 ? t("zoom.all") : state.zoom + "×";
    const fits = hasNumbers(place), button = byId("numbers");
    button.disabled = !fits;
    button.setAttribute("aria-pressed", String(state.numbers && fits));
    button.title = t(fits ? "numbers.title" : "numbers.small");
}

function zoomBy(factor) {
    const most = 2 ** Math.max(0, Math.ceil(Math.log2(36 / (place?.base ?? 36))));
    const zoom = Math.min(Math.max(state.zoom * factor, 1), most);
    if (!place || zoom === state.zoom) return;
    state.zoom = zoom;
    const at = inView(cursor());
    const cell = place.base * zoom;
    state.top = Math.round((at?.row ?? place.r0) - place.nr * place.ch / cell / 2);
    state.left = Math.round((at?.col ?? place.c0) - place.nc * place.cw / cell / 2);
    drawMap();
    drawMarks();
    drawNotes();
}

// Convert indices of items to indices in the view; null if hidden.
function inView(cell) {
    const row = view.rows.indexOf(cell.row), col = view.cols.indexOf(cell.col);
    return row < 0 || col < 0 ? null : {row, col};
}

function scrollToCursor() {
    const at = inView(cursor());
    if (!place || !at || state.zoom === 1) return;
    const top = Math.min(Math.max(place.r0, at.row - place.nr + 1), at.row);
    const left = Math.min(Math.max(place.c0, at.col - place.nc + 1), at.col);
    if (top === place.r0 && left === place.c0) return;
    [state.top, state.left] = [top, left];
    drawMap();
}

function drawMarks() {
    if (place) drawMarksOn(byId("marks").getContext("2d"), place);
    if (twinPlace) drawMarksOn(byId("twin-marks").getContext("2d"), twinPlace);
}

// Draw a cross-hair of a light and a dark line, which is visible on every colour.
function drawMarksOn(context, place) {
    const at = inView(cursor());
    context.clearRect(0, 0, place.width, place.height);
    if (!at) return;
    const r = at.row - place.r0, c = at.col - place.c0;
    if (r < 0 || c < 0 || r >= place.nr || c >= place.nc) return;
    if (state.rowOnly) dimOthers(context, place, r);
    const x = place.x + c * place.cw, y = place.y + r * place.ch;
    const w = Math.max(place.cw, 3), h = Math.max(place.ch, 3);
    outline(context, place.x, y - (h - place.ch) / 2, place.w, h, 0.55);
    outline(context, x - (w - place.cw) / 2, place.y, w, place.h + place.track, 0.55);
    outline(context, x - (w - place.cw) / 2, y - (h - place.ch) / 2, w, h, 1);
    if (!place.bare)
        markLabel(context, place, place.rows[at.row], place.x - place.gap, y + place.ch / 2, 0);
    markLabel(context, place, place.cols[at.col], x + place.cw / 2,
        place.y + place.h + place.track + 8, place.angle);
}

// Draw the chosen row in its colours, and fade the others.
function dimOthers(context, place, r) {
    context.globalAlpha = 0.72;
    context.fillStyle = theme.paper;
    context.fillRect(place.x, place.y, place.w, r * place.ch);
    const below = (r + 1) * place.ch;
    context.fillRect(place.x, place.y + below, place.w, place.h - below);
    context.globalAlpha = 1;
}

function outline(context, x, y, w, h, alpha) {
    context.globalAlpha = alpha;
    context.lineWidth = 3;
    context.strokeStyle = "rgba(0,0,0,.55)";
    context.strokeRect(x, y, w, h);
    context.lineWidth = 1.25;
    context.strokeStyle = "#fff";
    context.strokeRect(x, y, w, h);
    context.globalAlpha = 1;
}

// Draw the label of the row or column again, on a pill.
function markLabel(context, place, item, x, y, angle) {
    const numbered = (item.twin || (place.rowStep >= 4 && !data.track)) && item.text !== item.place;
    const size = place.size, number = numbered ? ` ${item.place}` : "";
    const text = cutTo(item.text, size, place.most - widthOf(number, size)) + number;
    const wide = widthOf(text, size, true);
    const straight = angle === 0 && y > place.y + place.h;
    context.save();
    context.translate(x, y);
    context.rotate(angle * Math.PI / 180);
    const left = straight ? -wide / 2 : -wide;
    const top = straight ? -4 : -8;
    context.fillStyle = theme.accent;
    context.beginPath();
    context.roundRect(left - 4, top, wide + 8, 16, 4);
    context.fill();
    context.font = `600 ${size}px ${FACE}`;
    context.fillStyle = theme.paper;
    context.textAlign = "left";
    context.fillText(text, left, top + 12);
    context.restore();
}

// -- the pointer ---------------------------------------------------------------------------------

function cellAt(event, onTwin) {
    const box = byId(onTwin ? "twin-cells" : "cells").getBoundingClientRect();
    const on = onTwin ? twinPlace : place;
    if (!on) return null;
    const c = Math.floor((event.clientX - box.left - on.x) / on.cw);
    const r = Math.floor((event.clientY - box.top - on.y) / on.ch);
    if (r < 0 || c < 0 || r >= on.nr || c >= on.nc) return null;
    return {row: view.rows[on.r0 + r], col: view.cols[on.c0 + c]};
}

const isOnTwin = event => event.currentTarget === byId("twin");

// Update at most once per frame, with the newest position.
let moved = null, movedOnTwin = false;
function onMove(event) {
    if (!moved) requestAnimationFrame(followPointer);
    moved = event;
    movedOnTwin = isOnTwin(event);
}

function followPointer() {
    const event = moved;
    moved = null;
    if (!place || !event) return;
    const cell = cellAt(event, movedOnTwin);
    showTip(cell, event);
    if (state.hover?.row === cell?.row && state.hover?.col === cell?.col) return;
    state.hover = cell;
    if (!state.locked) drawCursor();
}

function onLeave() {
    moved = null;
    byId("tip").hidden = true;
    if (!state.hover) return;
    state.hover = null;
    if (!state.locked) drawCursor();
}

function onPick(event) {
    const cell = place && cellAt(event, isOnTwin(event));
    if (!cell) return;
    const again = state.locked && cell.row === state.row && cell.col === state.col;
    [state.row, state.col] = [cell.row, cell.col];
    setLock(!again);
}

function setLock(locked) {
    state.locked = locked;
    byId("maps").classList.toggle("locked", locked);
    drawCursor();
    say(t(locked ? "lock.on" : "lock.off", {cell: cellText(state)}));
}

function onWheel(event) {
    if (state.zoom === 1 || !place) return;
    event.preventDefault();
    const step = d => Math.sign(d) * Math.max(1, Math.round(Math.abs(d) / place.ch / 2));
    state.top = place.r0 + step(event.shiftKey ? 0 : event.deltaY);
    state.left = place.c0 + step(event.shiftKey ? event.deltaY : event.deltaX);
    drawMap();
    drawMarks();
}

// -- the keyboard --------------------------------------------------------------------------------

function moveTo(row, col) {
    const rows = view.rows, cols = view.cols;
    if (!rows.length || !cols.length) return;
    state.hover = null;
    state.row = rows[Math.min(Math.max(row, 0), rows.length - 1)];
    state.col = cols[Math.min(Math.max(col, 0), cols.length - 1)];
    scrollToCursor();
    drawCursor();
    say(cellText(state));
}

const page = 10; // rows per Page Up and Page Down
const moves = {
    ArrowUp: at => [at.row - 1, at.col], ArrowDown: at => [at.row + 1, at.col],
    ArrowLeft: at => [at.row, at.col - 1], ArrowRight: at => [at.row, at.col + 1],
    PageUp: at => [at.row - page, at.col], PageDown: at => [at.row + page, at.col],
    Home: (at, all) => [all ? 0 : at.row, 0],
    End: (at, all) => [all ? Infinity : at.row, Infinity]
};

function onGridKey(event) {
    const move = moves[event.key];
    if (move && !event.altKey && !event.metaKey) {
        event.preventDefault();
        const at = inView(cursor()) ?? {row: 0, col: 0};
        moveTo(...move(at, event.ctrlKey));
    } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        if (state.hover) [state.row, state.col] = [state.hover.row, state.hover.col];
        setLock(!state.locked);
    }
}

function startMap() {
    for (const box of [byId("map"), byId("twin")]) {
        box.addEventListener("pointermove", onMove);
        box.addEventListener("pointerleave", onLeave);
        box.addEventListener("click", onPick);
        box.addEventListener("wheel", onWheel, {passive: false});
    }
    byId("cell").addEventListener("keydown", onGridKey);
    byId("zoom-in").addEventListener("click", () => zoomBy(2));
    byId("zoom-out").addEventListener("click", () => zoomBy(0.5));
    byId("zoom").addEventListener("pointerdown", event => event.stopPropagation());
}
