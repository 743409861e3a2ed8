"use strict";
// Maps over a picture. Token t is data.labels[t], or a patch; cells hold 255 sqrt(value / most).

const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const {rows, cols, patch} = data, first = data.labels.length, tokens = first + rows * cols;
const colours = bytes(data.colours);
const all = [...data.maps, ...data.beside.map(map => ({...map, beside: true}))];
for (const map of all) {
    map.cells = bytes(map.cells);
    map.on_patches = new Float32Array(bytes(map.on_patches).buffer);
}

const state = {group: 0, map: 0, query: first > 0 ? 0 : first + Math.floor(rows / 2) * cols + Math.floor(cols / 2),
    mix: 0.4, own: false};
state.kept = state.query; // drawn again when the pointer leaves the picture
let pixels = null;

const nameOf = t => t < first ? data.labels[t] : `row ${Math.floor((t - first) / cols)}, column ${(t - first) % cols}`;
const valueOf = (map, q, k) => map.most * (map.cells[q * tokens + k] / 255) ** 2;
const percent = v => v >= 0.0995 ? `${(100 * v).toFixed(0)} %` : `${(100 * v).toFixed(1)} %`;
const shown = () => all.filter(map => map.group === state.group);

// The share of a cell in its colours, 0 .. 1.
function share(map, q, k, most) {
    return most > 0 ? map.cells[q * tokens + k] / most : 0;
}

function mostOf(map, q) {
    if (!state.own) return 255;
    let most = 0;
    for (let k = first; k < tokens; k++) most = Math.max(most, map.cells[q * tokens + k]);
    return most;
}

function paint(canvas, map, zoom) {
    const width = cols * zoom, height = rows * zoom, most = mostOf(map, state.query);
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    const step = patch / zoom;
    for (let y = 0; y < height; y++)
        for (let x = 0; x < width; x++) {
            const k = first + Math.floor(y / zoom) * cols + Math.floor(x / zoom);
            const colour = 3 * Math.round(255 * share(map, state.query, k, most));
            const from = 4 * (Math.floor((y + 0.5) * step) * cols * patch + Math.floor((x + 0.5) * step));
            for (let c = 0; c < 3; c++)
                image.data[4 * (y * width + x) + c] =
                    state.mix * pixels[from + c] + (1 - state.mix) * colours[colour + c];
            image.data[4 * (y * width + x) + 3] = 255;
        }
    context.putImageData(image, 0, 0);
    if (state.query < first) return;
    const at = state.query - first;
    const line = Math.min(zoom / 2, Math.max(2, zoom / 14)); // shrunk canvases lose lines of one pixel
    context.lineWidth = line;
    context.strokeStyle = "#ff3b6b";
    context.strokeRect(at % cols * zoom + line / 2, Math.floor(at / cols) * zoom + line / 2, zoom - line, zoom - line);
}

function describe(map) {
    let best = first;
    for (let k = first; k < tokens; k++)
        if (map.cells[state.query * tokens + k] > map.cells[state.query * tokens + best]) best = k;
    return `${nameOf(state.query)} attends most to ${nameOf(best)} (${percent(valueOf(map, state.query, best))}); ` +
        `${percent(map.on_patches[state.query])} of its weight is on patches.`;
}

function describeColours(map) {
    const most = map.most * (mostOf(map, state.query) / 255) ** 2;
    return `Colours: dark is 0, yellow ${percent(most)}, the largest weight ` +
        `${state.own ? "of this query on a patch" : "in this map"}; square-root scale.`;
}

function drawSpecials(map) {
    const most = mostOf(map, state.query);
    [...byId("specials").children].forEach((button, t) => {
        const colour = 3 * Math.round(255 * Math.min(1, share(map, state.query, t, most)));
        button.style.borderLeftColor = `rgb(${colours[colour]}, ${colours[colour + 1]}, ${colours[colour + 2]})`;
        button.textContent = `${data.labels[t]} ${percent(valueOf(map, state.query, t))}`;
        button.setAttribute("aria-pressed", t === state.query);
    });
}

function drawMeasures(map) {
    byId("measures").replaceChildren(...map.measures.flatMap(measure => {
        const cells = [["dt", measure.name], ["dd", measure.value === null ? "–" : measure.value.toFixed(3)],
            ["dd", measure.chance === null ? "" : `chance ${measure.chance.toFixed(3)}`]];
        return cells.map(([tag, text]) => Object.assign(document.createElement(tag), {textContent: text}));
    }));
}

function draw() {
    const maps = shown(), map = maps[state.map];
    byId("name").textContent = map.name;
    paint(byId("large"), map, Math.max(4, Math.min(patch, Math.floor(640 / Math.max(rows, cols)))));
    byId("large").setAttribute("aria-label", `${map.name} over the picture: ${describe(map)}`);
    byId("readout").textContent = describe(map);
    byId("range").textContent = describeColours(map);
    drawSpecials(map);
    drawMeasures(map);
    [...byId("maps").children].forEach((button, i) => {
        paint(button.querySelector("canvas"), maps[i], Math.max(2, Math.min(patch, Math.floor(160 / Math.max(rows, cols)))));
        button.querySelector("small").textContent = percent(maps[i].on_patches[state.query]);
        button.setAttribute("aria-pressed", i === state.map);
    });
}

function ask(query, keep) {
    if (keep) state.kept = query;
    if (query === state.query) return;
    state.query = query;
    draw();
}

function makeMaps() {
    byId("maps").replaceChildren(...shown().map((map, i) => {
        const button = document.createElement("button"), small = document.createElement("small");
        small.title = "weight of this query on patches";
        button.type = "button";
        button.append(map.name, small, document.createElement("canvas"));
        button.onclick = () => {
            state.map = i;
            draw();
        };
        return button;
    }));
}

const patchAt = event => {
    const box = byId("large").getBoundingClientRect();
    const inside = (at, from, size, count) => Math.max(0, Math.min(count - 1, Math.floor((at - from) / size * count)));
    return first + inside(event.clientY, box.top, box.height, rows) * cols + inside(event.clientX, box.left, box.width, cols);
};

function listen() {
    const large = byId("large");
    large.onpointermove = event => ask(patchAt(event), false);
    large.onpointerleave = () => ask(state.kept, false);
    large.onclick = event => ask(patchAt(event), true);
    large.onkeydown = event => {
        const [down, right] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] || [0, 0];
        if (!down && !right) return;
        const at = Math.max(0, state.query - first);
        const row = Math.max(0, Math.min(rows - 1, Math.floor(at / cols) + down));
        ask(first + row * cols + Math.max(0, Math.min(cols - 1, at % cols + right)), true);
        event.preventDefault();
    };
    byId("group").onchange = () => {
        state.group = Number(byId("group").value);
        state.map = 0;
        makeMaps();
        draw();
    };
    byId("mix").oninput = () => {
        state.mix = byId("mix").value / 100;
        draw();
    };
    byId("own").onchange = () => {
        state.own = byId("own").checked;
        draw();
    };
}

function start(image) {
    const canvas = document.createElement("canvas");
    canvas.width = cols * patch;
    canvas.height = rows * patch;
    canvas.getContext("2d").drawImage(image, 0, 0);
    pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    byId("specials").append(...data.labels.map((_, t) => {
        const button = document.createElement("button");
        button.type = "button";
        button.onclick = () => ask(t, true);
        return button;
    }));
    byId("specials").hidden = first === 0;
    byId("group").append(...data.groups.map((name, i) => new Option(name, i)));
    makeMaps();
    listen();
    byId("app").hidden = false;
    draw();
}

const image = new Image();
image.onload = () => start(image);
image.src = `data:image/png;base64,${data.image}`;
