// Draw one map with its labels on a surface: canvas pixels, or SVG text for saving.

const FACE = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const ruler = document.createElement("canvas").getContext("2d");

function widthOf(text, size, bold = false) {
    ruler.font = `${bold ? 600 : 400} ${size}px ${FACE}`;
    return ruler.measureText(text).width;
}

function cutTo(text, size, width) {
    if (widthOf(text, size) <= width) return text;
    const letters = Array.from(text);
    let low = 0, high = letters.length;
    while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (widthOf(letters.slice(0, middle).join("") + "…", size) <= width) low = middle;
        else high = middle - 1;
    }
    return letters.slice(0, low).join("") + "…";
}

class CanvasSurface {
    constructor(context) { this.c = context; }
    rect(x, y, w, h, color) { this.c.fillStyle = color; this.c.fillRect(x, y, w, h); }
    line(x1, y1, x2, y2, color, width = 1) {
        this.c.strokeStyle = color;
        this.c.lineWidth = width;
        this.c.beginPath();
        this.c.moveTo(x1, y1);
        this.c.lineTo(x2, y2);
        this.c.stroke();
    }
    text(x, y, text, {size, color, anchor = "start", angle = 0, bold = false}) {
        const c = this.c;
        c.save();
        c.translate(x, y);
        c.rotate(angle * Math.PI / 180);
        c.font = `${bold ? 600 : 400} ${size}px ${FACE}`;
        c.fillStyle = color;
        c.direction = "ltr"; // "start" would be the right end in a right-to-left page
        c.textAlign = anchor === "middle" ? "center" : anchor;
        c.fillText(text, 0, 0);
        c.restore();
    }
    triangle(points, color) {
        this.c.fillStyle = color;
        this.c.beginPath();
        points.forEach(([x, y], i) => i ? this.c.lineTo(x, y) : this.c.moveTo(x, y));
        this.c.fill();
    }
    image(picture, x, y, w, h) {
        this.c.imageSmoothingEnabled = false;
        this.c.drawImage(picture, x, y, w, h);
    }
    // Hatch a list of [x, y, w, h]. The lines are continuous across boxes.
    hatch(boxes, theme) {
        const c = this.c;
        if (!boxes.length) return;
        let x1 = Infinity, y1 = Infinity, x2 = -Infinity, y2 = -Infinity;
        c.save();
        c.beginPath();
        for (const [x, y, w, h] of boxes) {
            c.rect(x, y, w, h);
            [x1, y1] = [Math.min(x1, x), Math.min(y1, y)];
            [x2, y2] = [Math.max(x2, x + w), Math.max(y2, y + h)];
        }
        c.clip();
        c.strokeStyle = theme.maskLine;
        c.lineWidth = 1;
        c.beginPath();
        for (let s = Math.floor((x1 + y1) / 6) * 6; s < x2 + y2; s += 6) {
            c.moveTo(s - y1, y1);
            c.lineTo(s - y2, y2);
        }
        c.stroke();
        c.restore();
    }
}

const escapeXml = text => text.replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");

class SvgSurface {
    constructor() { this.parts = []; }
    add(text) { this.parts.push(text); }
    rect(x, y, w, h, color) {
        this.add(`<rect ${boxOf(x, y, w, h)} fill="${color}" shape-rendering="crispEdges"/>`);
    }
    line(x1, y1, x2, y2, color, width = 1) {
        const ends = `x1="${trim(x1)}" y1="${trim(y1)}" x2="${trim(x2)}" y2="${trim(y2)}"`;
        this.add(`<line ${ends} stroke="${color}" stroke-width="${width}"/>`);
    }
    text(x, y, text, {size, color, anchor = "start", angle = 0, bold = false}) {
        const turn = angle ? ` transform="rotate(${angle} ${trim(x)} ${trim(y)})"` : "";
        const weight = bold ? 600 : 400;
        const face = `font-size="${size}" text-anchor="${anchor}" font-weight="${weight}"`;
        this.add(`<text x="${trim(x)}" y="${trim(y)}" ${face} fill="${color}"${turn}>` +
            `${escapeXml(text)}</text>`);
    }
    triangle(points, color) {
        this.add(`<polygon points="${points.flat().map(trim).join(" ")}" fill="${color}"/>`);
    }
    image(picture, x, y, w, h) {
        this.add(`<image ${boxOf(x, y, w, h)} preserveAspectRatio="none" ` +
            `style="image-rendering:pixelated" href="${picture.toDataURL()}"/>`);
    }
    hatch(boxes, theme) {
        if (!boxes.length) return;
        this.add('<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">' +
            `<rect width="6" height="6" fill="${theme.maskPaper}"/>` +
            `<path d="M-1 1L1 -1M-1 7L7 -1M5 7L7 5" stroke="${theme.maskLine}"/></pattern></defs>`);
        for (const [x, y, w, h] of boxes)
            this.add(`<rect ${boxOf(x, y, w, h)} fill="url(#hatch)"/>`);
    }
    finish(width, height) {
        // The namespace of SVG looks like an address that the page might load. It is split, so that a
        // search for addresses finds none.
        const space = ["ht", "tp:/", "/www.w3.org/2000/svg"].join("");
        const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
        return `<svg xmlns="${space}" ${size} font-family="${escapeXml(FACE)}">\n` +
            `${this.parts.join("\n")}\n</svg>\n`;
    }
}

const trim = v => String(Math.round(v * 100) / 100);
const boxOf = (x, y, w, h) =>
    `x="${trim(x)}" y="${trim(y)}" width="${trim(w)}" height="${trim(h)}"`;

// Place a map and its labels within width x height. options: zoom, top, left (first cells), ratio
// (device pixels per unit), share (room for the hidden share of rows), bare (no row labels).
const HIDDEN_WIDTH = 66, TWIN_LEFT = 2, TRACK_HEIGHT = 84;
function placeMap(map, rows, cols, width, height, options) {
    const p = {map, rows, cols, size: 11, gap: 6, title: 20,
        share: options.share ? HIDDEN_WIDTH : 0, bare: Boolean(options.bare)};
    const most = Math.min(150, Math.max(56, width * 0.24));
    const numbered = !data.track && Math.max(rows.length, cols.length) > 60;
    const widest = items =>
        items.reduce((w, item) => Math.max(w, labelWidth(item, p.size, numbered)), 0);
    p.most = most;
    p.rowDepth = Math.min(most, rows.length > 2000 ? most : widest(rows)) + p.gap;
    p.x = p.bare ? TWIN_LEFT : p.title + p.rowDepth;
    p.track = data.track ? TRACK_HEIGHT : 0;
    const colWidest = Math.min(most, cols.length > 2000 ? most : widest(cols));
    const roomX = Math.max(width - p.x - p.share - 12, 40), roomY = Math.max(height - 30 - p.track, 40);
    chooseCells(p, roomX, roomY - colWidest * 0.9, options);
    chooseWindow(p, roomX, roomY, options);
    p.rowStep = stepFor(p.ch);
    p.colStep = stepFor(p.cw);
    const pitch = p.cw * p.colStep;
    p.size = Math.min(11, Math.max(9, Math.floor(Math.min(p.ch * p.rowStep, pitch) - 1)));
    p.angle = colWidest <= pitch - 6 ? 0 : pitch >= 22 ? -60 : -90;
    const radians = -p.angle * Math.PI / 180;
    p.colDepth = colWidest * Math.sin(radians) + p.size * Math.cos(radians) + p.gap + 2;
    p.y = Math.max(1, Math.ceil((p.size + 2 - p.ch) / 2)); // a label is higher than a thin row
    p.w = p.nc * p.cw;
    p.h = p.nr * p.ch;
    p.width = Math.ceil(p.x + p.w + p.share + 12);
    p.height = Math.ceil(p.y + p.h + p.track + p.colDepth + p.title);
    return p;
}

// Cells are square unless one side would be too thin, and whole device pixels unless that wastes
// much room.
function chooseCells(p, roomX, roomY, options) {
    const n = Math.max(p.rows.length, 1), m = Math.max(p.cols.length, 1), ratio = options.ratio;
    const whole = size => {
        const pixels = Math.floor(size * ratio) / ratio;
        return pixels > 0.85 * size ? pixels : size;
    };
    const cap = Math.max(n, m) <= 6 ? 72 : 46;
    const cw = Math.min(whole(roomX / m), cap), ch = Math.min(whole(roomY / n), cap);
    const side = Math.min(cw, ch);
    p.base = side;
    const thread = Math.min(n, m) < 0.4 * Math.max(n, m);
    p.cw = (thread ? Math.max(side, Math.min(cw, 12)) : side) * options.zoom;
    p.ch = (thread ? Math.max(side, Math.min(ch, 12)) : side) * options.zoom;
}

function chooseWindow(p, roomX, roomY, options) {
    const zoomed = options.zoom > 1;
    const n = p.rows.length, m = p.cols.length;
    p.nr = zoomed ? Math.min(n, Math.max(1, Math.floor(roomY / p.ch))) : n;
    p.nc = zoomed ? Math.min(m, Math.max(1, Math.floor(roomX / p.cw))) : m;
    p.r0 = Math.min(Math.max(options.top, 0), n - p.nr);
    p.c0 = Math.min(Math.max(options.left, 0), m - p.nc);
}

// Draw every label if cells are high enough, otherwise fewer labels, well apart, at round numbers.
const stepFor = cell => cell >= 9.5 ? 1 : goodStep(Math.ceil(12.5 / cell));

function goodStep(step) {
    if (step <= 5) return Math.max(1, step);
    let good = 10;
    for (let i = 1; good < step; i++) good = i % 3 === 2 ? good / 2 * 5 : good * 2;
    return good;
}

const labelWidth = (item, size, numbered) =>
    widthOf(item.text, size) + (item.twin || numbered ? widthOf(" " + item.place, size - 2) : 0);

// A picture of some cells, one pixel per cell, or per block (its maximum) if there are more than
// mostW or mostH. canvas: the canvas to draw on; otherwise a new one.
function pictureOf(map, window, mostW, mostH, scale, palette, theme, canvas) {
    const stepR = Math.ceil(window.nr / Math.max(mostH, 1));
    const stepC = Math.ceil(window.nc / Math.max(mostW, 1));
    const w = Math.ceil(window.nc / stepC), h = Math.ceil(window.nr / stepR);
    const picture = canvas ?? document.createElement("canvas");
    if (picture.width !== w) picture.width = w;
    if (picture.height !== h) picture.height = h;
    const context = picture.getContext("2d"), pixels = context.createImageData(w, h);
    const flat = new Uint32Array(pixels.data.buffer);
    const colors = new Uint32Array(258);
    for (let i = 0; i < 256; i++)
        colors[i] = pixel(palette[3 * i], palette[3 * i + 1], palette[3 * i + 2]);
    colors[256] = pixel(...rgbOf(window.tiny ? theme.maskLine : theme.maskPaper));
    colors[257] = pixel(...rgbOf(window.tiny ? theme.bad : theme.paper));
    const best = blocksOf(map, window, stepR, stepC, w, h);
    const steps = stepsOf(scale, best.value);
    for (let i = 0; i < flat.length; i++)
        flat[i] = colors[best.kind[i] === VALUE ? steps[i] : 255 + best.kind[i]];
    context.putImageData(pixels, 0, 0);
    picture.pooled = [stepR, stepC];
    return picture;
}

const pixel = (r, g, b) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;

const isMore = data.negative ? (a, b) => Math.abs(a) > Math.abs(b) : (a, b) => a > b;

// A block is masked only if all its cells are masked, and not finite if any cell is not finite, as
// in the C code.
function blocksOf(map, window, stepR, stepC, w, h) {
    const value = new Float32Array(w * h), kind = new Uint8Array(w * h).fill(MASKED);
    for (let r = 0; r < window.nr; r++) {
        const base = (window.r0 + r) * map.cols + window.c0, out = Math.floor(r / stepR) * w;
        for (let c = 0; c < window.nc; c++) {
            const at = out + (stepC === 1 ? c : Math.floor(c / stepC));
            const k = map.kind ? map.kind[base + c] : VALUE;
            if (k === MASKED || kind[at] === NOT_FINITE) continue;
            const v = map.value[base + c];
            if (k === NOT_FINITE) kind[at] = NOT_FINITE;
            else if (kind[at] === MASKED || isMore(v, value[at])) {
                kind[at] = VALUE;
                value[at] = v;
            }
        }
    }
    return {value, kind};
}

const rgbCache = new Map();
function rgbOf(color) {
    if (!rgbCache.has(color)) {
        ruler.fillStyle = color;
        const hex = ruler.fillStyle; // always #rrggbb for an opaque colour
        rgbCache.set(color, [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
    }
    return rgbCache.get(color);
}

const hasNumbers = p => p.cw >= 27 && p.ch >= 15;

// Paint a placed map completely. look: scale, palette, theme, numbers, ratio, found.
function paintMap(surface, p, look) {
    p.tiny = p.cw < 4 || p.ch < 4;
    const picture = pictureOf(p.map, p, p.w * look.ratio, p.h * look.ratio, look.scale,
        look.palette, look.theme);
    p.pooled = picture.pooled;
    paintCells(surface, p, look, picture);
    if (!p.tiny && p.map.kind) paintKinds(surface, p, look.theme);
    paintFrame(surface, p, look.theme);
    if (look.numbers && hasNumbers(p)) paintNumbers(surface, p, look);
    if (!p.bare) paintRowLabels(surface, p, look);
    if (p.track) paintTrack(surface, p, look);
    paintColLabels(surface, p, look);
    if (p.share) paintShares(surface, p, look.theme);
}

// Draw few cells as shapes, so that a saved SVG can be edited, and many cells as an image.
function paintCells(surface, p, look, picture) {
    if (surface instanceof CanvasSurface || p.nr * p.nc > 10000) {
        surface.image(picture, p.x, p.y, p.w, p.h);
        return;
    }
    const steps = stepsOf(look.scale, p.map.value);
    for (let r = 0; r < p.nr; r++)
        for (let c = 0; c < p.nc; c++) {
            const at = (p.r0 + r) * p.map.cols + p.c0 + c;
            const kind = p.map.kind ? p.map.kind[at] : VALUE;
            const color = kind === VALUE ? cssColor(look.palette, steps[at])
                : kind === MASKED ? look.theme.maskPaper : look.theme.paper;
            surface.rect(p.x + c * p.cw, p.y + r * p.ch, p.cw, p.ch, color);
        }
}

function paintKinds(surface, p, theme) {
    const boxes = [];
    for (let r = 0; r < p.nr; r++)
        for (let c = 0; c < p.nc; c++) {
            const kind = p.map.kind[(p.r0 + r) * p.map.cols + p.c0 + c];
            const x = p.x + c * p.cw, y = p.y + r * p.ch;
            if (kind === MASKED) boxes.push([x, y, p.cw, p.ch]);
            if (kind !== NOT_FINITE) continue;
            const [a, b] = [0.25, 0.75];
            surface.line(x + a * p.cw, y + a * p.ch, x + b * p.cw, y + b * p.ch, theme.bad, 1.5);
            surface.line(x + a * p.cw, y + b * p.ch, x + b * p.cw, y + a * p.ch, theme.bad, 1.5);
        }
    surface.hatch(boxes, theme);
}

function paintFrame(surface, p, theme) {
    const [x1, y1, x2, y2] = [p.x - 0.5, p.y - 0.5, p.x + p.w + 0.5, p.y + p.h + 0.5];
    surface.line(x1, y1, x2, y1, theme.frame);
    surface.line(x1, y2, x2, y2, theme.frame);
    surface.line(x1, y1, x1, y2, theme.frame);
    surface.line(x2, y1, x2, y2, theme.frame);
}

function paintNumbers(surface, p, look) {
    const greatest = Math.max(Math.abs(look.reach.least), Math.abs(look.reach.greatest));
    const size = p.cw >= 36 ? 10.5 : 9.5;
    for (let r = 0; r < p.nr; r++)
        for (let c = 0; c < p.nc; c++) {
            const at = (p.r0 + r) * p.map.cols + p.c0 + c;
            if (p.map.kind && p.map.kind[at] !== VALUE) continue;
            const step = Math.round(255 * look.scale.position(p.map.value[at]));
            surface.text(p.x + (c + 0.5) * p.cw, p.y + (r + 0.5) * p.ch + size * 0.36,
                inCell(p.map.value[at], greatest),
                {size, anchor: "middle", color: inkOn(look.palette, step)});
        }
}

// Paint a label. Its index follows in small type if another label is equal or most labels are
// omitted.
function paintLabel(surface, item, x, y, p, look, anchor, angle) {
    const found = look.found?.(item), size = p.size;
    const color = found ? look.theme.accent : look.theme.ink;
    if ((!item.twin && (p.rowStep < 4 || data.track)) || item.text === item.place) {
        const text = cutTo(item.text, size, p.most);
        surface.text(x, y, text, {size, color, anchor, angle, bold: found});
        return;
    }
    const number = " " + item.place, wide = widthOf(number, size - 2);
    const text = cutTo(item.text, size, p.most - wide);
    const back = anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0;
    const turn = angle * Math.PI / 180, half = widthOf(text, size, found) / 2;
    const along = d => [x + d * Math.cos(turn), y + d * Math.sin(turn)];
    surface.text(...along(-back), text, {size, color, anchor, angle, bold: found});
    const middle = anchor === "middle";
    surface.text(...along(middle ? half - wide / 2 : 0), number,
        {size: size - 2, color: look.theme.muted, anchor: middle ? "start" : anchor, angle});
}

function paintRowLabels(surface, p, look) {
    for (let r = firstStep(p.r0, p.rowStep); r < p.r0 + p.nr; r += p.rowStep) {
        const y = p.y + (r - p.r0 + 0.5) * p.ch + p.size * 0.36;
        paintLabel(surface, p.rows[r], p.x - p.gap, y, p, look, "end", 0);
    }
    const title = cutTo(data.row_axis, 11, p.h + p.colDepth);
    surface.text(11, p.y + Math.max(p.h / 2, widthOf(title, 11) / 2 + 1), title,
        {size: 11, color: look.theme.muted, anchor: "middle", angle: -90});
}

const firstStep = (from, step) => Math.ceil(from / step) * step;

function paintColLabels(surface, p, look) {
    const y = p.y + p.h + p.track, lift = p.size * 0.36;
    for (let c = firstStep(p.c0, p.colStep); c < p.c0 + p.nc; c += p.colStep) {
        const x = p.x + (c - p.c0 + 0.5) * p.cw;
        const drop = p.angle === -90 ? 5 : 8;
        if (p.angle === 0) paintLabel(surface, p.cols[c], x, y + p.size + 4, p, look, "middle", 0);
        else paintLabel(surface, p.cols[c], x + lift, y + drop, p, look, "end", p.angle);
    }
    surface.text(p.x + p.w / 2, p.height - 5, data.col_axis,
        {size: 11, color: look.theme.muted, anchor: "middle"});
}

// The picture under the columns, such as the spectrogram of their times. A column is the mean of its
// labels.
function paintTrack(surface, p, look) {
    const rows = data.track_rows, picture = document.createElement("canvas");
    trackBytes ??= bytesOf(data.track);
    [picture.width, picture.height] = [p.nc, rows];
    const context = picture.getContext("2d"), pixels = context.createImageData(p.nc, rows);
    const flat = new Uint32Array(pixels.data.buffer), colors = look.palette;
    for (let c = 0; c < p.nc; c++) {
        const {from, to} = p.cols[p.c0 + c];
        for (let r = 0; r < rows; r++) {
            let sum = 0;
            for (let i = from; i <= to; i++) sum += trackBytes[r * data.cols + i];
            const at = 3 * Math.round(sum / (to - from + 1));
            flat[r * p.nc + c] = pixel(colors[at], colors[at + 1], colors[at + 2]);
        }
    }
    context.putImageData(pixels, 0, 0);
    const y = p.y + p.h + 4, h = p.track - 8;
    surface.image(picture, p.x, y, p.w, h);
    if (p.bare || !data.track_name) return;
    const name = given(data.track_name), most = p.x - p.gap - 2;
    const half = Math.ceil(name.length / 2), cut = name.lastIndexOf(" ", half + 4);
    const lines = cut > 0 ? [name.slice(0, cut), name.slice(cut + 1)] : [name];
    lines.forEach((line, i) => surface.text(p.x - p.gap, y + h / 2 + 12 * (i - 0.2),
        cutTo(line, 10, Math.max(most, 40)),
        {size: 10, color: look.theme.muted, anchor: "end"}));
}

// Paint the hidden share of each row, as a bar and in percent.
function paintShares(surface, p, theme) {
    surface.text(p.x + p.w + 8, p.y + p.h + 12, t("hidden"), {size: 9.5, color: theme.muted});
    for (let r = 0; r < p.nr; r++) {
        const share = p.map.hidden[p.r0 + r], x = p.x + p.w + 8, y = p.y + r * p.ch;
        const h = Math.min(p.ch - (p.ch > 3 ? 2 : 0), 5);
        surface.rect(x, y + (p.ch - h) / 2, Math.max(share * 24, 0.5), h, theme.muted);
        if (p.ch >= 10)
            surface.text(x + 29, y + p.ch / 2 + 3.4, `${Math.round(100 * share)} %`,
                {size: 9.5, color: theme.muted});
    }
}
