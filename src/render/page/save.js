// Downloads, made in the page: the current view as PNG, SVG, CSV or JSON.

function download(name, type, content) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], {type}));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const fileName = (i, ending) =>
    (i < 0 ? "maps" : panels[i].name.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 60) || "map") +
    ending;

// The shortest text that reads back as the same 32-bit float.
function floatText(value) {
    for (let digits = 6; digits < 9; digits++) {
        const text = value.toPrecision(digits);
        if (Math.fround(Number(text)) === Math.fround(value)) return String(Number(text));
    }
    return String(Number(value.toPrecision(9)));
}

// Spreadsheets read a cell that begins with one of these characters as a formula. A leading quote
// makes the cell text, as OWASP recommends. Numbers remain numbers.
const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
function csvField(text) {
    const safe = FORMULA.test(text) && !NUMBER.test(text) ? "'" + text : text;
    return /[",;\t\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}
const labelText = item => item.raw ?? item.text;

function csvRows(i, named) {
    const map = mapOf(i), [rows, cols] = itemsInView();
    return rows.map((item, r) => {
        const cells = cols.map((_, c) => {
            const k = r * map.cols + c, kind = map.kind ? map.kind[k] : VALUE;
            return kind === VALUE ? floatText(map.value[k]) : kind === MASKED ? "" : "nan";
        });
        const names = named ? [panels[i].name, labelText(item)] : [labelText(item)];
        return [...names.map(csvField), ...cells].join(",");
    });
}

function csvText(list, named) {
    const cols = itemsInView()[1].map(item => csvField(labelText(item)));
    const head = [...(named ? ["map"] : []), csvField(`${rowWord}\\${colWord}`), ...cols].join(",");
    return [head, ...list.flatMap(i => csvRows(i, named))].join("\r\n") + "\r\n";
}

function jsonRows(source) {
    const map = mapFrom(source), rows = [];
    for (let r = 0; r < map.rows; r++) {
        const row = [];
        for (let c = 0; c < map.cols; c++) {
            const k = r * map.cols + c, kind = map.kind ? map.kind[k] : VALUE;
            row.push(kind === VALUE ? floatText(map.value[k]) : kind === MASKED ? "null" : '"nan"');
        }
        rows.push("[" + row.join(",") + "]");
    }
    return "[" + rows.join(",\n") + "]";
}

// null is a masked cell, "nan" one that is not finite.
function jsonText(list) {
    const [rows, cols] = itemsInView();
    const head = {title: data.title, row_axis: data.row_axis, col_axis: data.col_axis,
        value_name: data.value_name, hidden: [...state.hidden], rescaled: view.rescaled,
        bits: data.bits, pool: data.pool, cell_tokens: data.cell_tokens,
        frame: frames[state.frame]?.label, twin_name: data.twin_name, twin_value: data.twin_value,
        row_labels: rows.map(labelText), col_labels: cols.map(labelText)};
    const text = JSON.stringify(head, null, 1).slice(0, -2);
    const maps = list.map(i => {
        const {name, badge, detail, measures, twin} = panels[i];
        const scores = data.columns.map((column, k) => [column.name ?? k, column.values[i]]);
        const about = JSON.stringify({name, badge: badge ?? undefined, detail: detail ?? undefined,
            measures, scores: scores.length ? Object.fromEntries(scores) : undefined});
        const other = twin && state.frame < 0 ? `, "twin": ${jsonRows(twin)}` : "";
        return `${about.slice(0, -1)}, "values": ${jsonRows(sourceOf(i))}${other}}`;
    });
    return `${text},\n "maps": [${maps.join(",\n")}]\n}\n`;
}

// The large map as a picture of its own, with its name and colour bar.
function paintPicture(surface, p, i, top) {
    const look = {...lookOf(sourceOf(i), scaleOf(i), 1), found: null};
    surface.rect(0, 0, p.width, p.height + top, theme.paper);
    const write = (text, y, size, color, bold) =>
        surface.text(14, y, cutTo(text, size, p.width - 28), {size, color, bold});
    const {name, badge, note} = panels[i], moment = frames[state.frame]?.label;
    write([name, badge, note, moment].filter(Boolean).join("  "), 22, 15, theme.ink, true);
    if (data.title) write(data.title, 40, 11, theme.muted, false);
    paintBar(surface, 14, 50, Math.min(200, p.width - 60), look.scale);
    p.y += top;
    p.height += top;
    paintMap(surface, p, look);
    if (view.hiding) write(hiddenNote(), p.height + 14, 10, theme.muted, false);
}

function paintBar(surface, x, y, width, scale) {
    const steps = 64, colours = palette();
    for (let k = 0; k < steps; k++)
        surface.rect(x + 12 + width * k / steps, y, width / steps + 0.5, 10,
            cssColor(colours, Math.round(255 * k / (steps - 1))));
    const arrow = (from, to, color) =>
        surface.triangle([[from, y], [from, y + 10], [to, y + 5]], color);
    if (scale.clippedLow) arrow(x + 9, x, cssColor(colours, 0));
    if (scale.clippedHigh) arrow(x + width + 15, x + width + 24, cssColor(colours, 255));
    for (const [at, text] of barTicks(scale))
        surface.text(x + 12 + width * at, y + 22, text, {size: 9.5, color: theme.muted, anchor: "middle"});
    const kind = scale.kind === "linear" ? "" : t(`scale.${scale.kind}`);
    surface.text(x + width + 30, y + 9, [data.value_name && valueWord, kind].filter(Boolean).join(", "),
        {size: 9.5, color: theme.muted});
}

function picturePlace() {
    const [rows, cols] = itemsInView();
    return placeMap(mapOf(state.panel), rows, cols, 960, 900,
        {zoom: 1, top: 0, left: 0, ratio: 1, share: view.hiding});
}

const PICTURE_TOP = 84, PICTURE_FOOT = 22;

function svgText() {
    const surface = new SvgSurface(), p = picturePlace(), width = Math.max(p.width, 320);
    p.width = width;
    paintPicture(surface, p, state.panel, PICTURE_TOP);
    return surface.finish(width, p.height + PICTURE_FOOT);
}

function savePng() {
    const p = picturePlace(), canvas = document.createElement("canvas");
    p.width = Math.max(p.width, 320);
    const context = sizeCanvas(canvas, p.width, p.height + PICTURE_TOP + PICTURE_FOOT, 2);
    context.fillStyle = theme.paper;
    context.fillRect(0, 0, p.width, p.height + PICTURE_TOP + PICTURE_FOOT);
    paintPicture(new CanvasSurface(context), p, state.panel, PICTURE_TOP);
    canvas.toBlob(blob => download(fileName(state.panel, ".png"), "image/png", blob));
}

const everything = () => panels.map((_, i) => i);
const saveText = (i, ending, type, text) => download(fileName(i, ending), type, text);
const saves = [
    ["map", [
        ["PNG", savePng],
        ["SVG", () => saveText(state.panel, ".svg", "image/svg+xml", svgText())],
        ["CSV", () => saveText(state.panel, ".csv", "text/csv", csvText([state.panel], false))],
        ["JSON", () =>
            saveText(state.panel, ".json", "application/json", jsonText([state.panel]))]]],
    ["maps", [
        ["PNG", saveAllPng],
        ["SVG", () => saveText(-1, ".svg", "image/svg+xml", allSvgText())],
        ["CSV", () => saveText(-1, ".csv", "text/csv", csvText(everything(), true))],
        ["JSON", () => saveText(-1, ".json", "application/json", jsonText(everything()))]]],
    ...(data.columns.length ? [["scores", [
        ["CSV", () => download("scores.csv", "text/csv", scoresText())]]]] : [])
];

// The table of scores as it is sorted.
function scoresText() {
    const head = [t("scores.map"), t("overview.role"), ...data.columns.map((_, i) => columnName(i))];
    const lines = scoreOrder().map(i => [csvField(panels[i].name), csvField(panels[i].badge ?? ""),
        ...data.columns.map(column => column.values[i] === null ? "" : String(column.values[i]))]);
    return [head.map(csvField), ...lines].map(line => line.join(",")).join("\r\n") + "\r\n";
}

// All maps as one picture: the grid of the overview, with names and badges.
const TILE = 96, TILE_GAP = 14, TILE_TEXT = 28;
function tilesOf() {
    const groups = state.order === "index" ? groupList() : [{list: orderBy(state.order), name: ""}];
    const most = Math.min(Math.max(1, ...groups.map(g => g.list.length)), 12);
    const tiles = [];
    let line = 0;
    for (const {list} of groups) {
        list.forEach((i, k) => tiles.push({i, x: 20 + (k % most) * (TILE + TILE_GAP),
            y: PICTURE_TOP + (line + Math.floor(k / most)) * (TILE + TILE_TEXT)}));
        line += Math.ceil(list.length / most);
    }
    return {tiles, width: Math.max(40 + most * (TILE + TILE_GAP) - TILE_GAP, 360),
        height: PICTURE_TOP + line * (TILE + TILE_TEXT) + 12};
}

function paintAll(surface, {tiles, width, height}) {
    surface.rect(0, 0, width, height, theme.paper);
    surface.text(20, 26, cutTo(data.title ?? t("map.untitled"), 15, width - 40),
        {size: 15, color: theme.ink, bold: true});
    if (state.range !== "panel") paintBar(surface, 8, 42, 200, scaleOf(0));
    for (const {i, x, y} of tiles) {
        const map = mapOf(i), whole = {r0: 0, c0: 0, nr: map.rows, nc: map.cols, tiny: true};
        if (!map.rows || !map.cols) continue;
        const picture = pictureOf(map, whole, 2 * TILE, 2 * TILE, scaleOf(i), palette(), theme);
        surface.image(picture, x, y, TILE, TILE);
        const {name, badge} = panels[i], room = TILE - widthOf(name + " ", 10), base = y + TILE + 11;
        surface.text(x, base, cutTo(name, 10, TILE), {size: 10, color: theme.ink});
        if (badge && room > 20)
            surface.text(x + TILE, base, cutTo(badge, 9.5, room),
                {size: 9.5, color: theme.muted, anchor: "end"});
    }
}

function allSvgText() {
    const surface = new SvgSurface(), layout = tilesOf();
    paintAll(surface, layout);
    return surface.finish(layout.width, layout.height);
}

function saveAllPng() {
    const layout = tilesOf(), canvas = document.createElement("canvas");
    const area = layout.width * layout.height;
    const context = sizeCanvas(canvas, layout.width, layout.height, area > 4e6 ? 1 : 2);
    paintAll(new CanvasSurface(context), layout);
    canvas.toBlob(blob => download(fileName(-1, ".png"), "image/png", blob));
}

function buildSaves() {
    for (const [name, kinds] of saves) {
        const what = t(`save.${name}`);
        const line = make("div", "save-line", make("span", "", what));
        for (const [kind, save] of kinds) {
            const button = make("button", "", kind);
            button.type = "button";
            button.setAttribute("aria-label", t("save.as", {what, kind}));
            button.addEventListener("click", () => { save(); byId("save").open = false; });
            line.append(button);
        }
        byId("save-list").append(line);
    }
}
