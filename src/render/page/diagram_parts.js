// Parts of the diagram: strips of numbers, arrows with shapes, boxes of operations.

const floatsOf = text => text ? new Float32Array(bytesOf(text).buffer) : null;
const sizeOf = list => Math.max(...Array.from(list, Math.abs), 0);
const lengthOf = list => Math.hypot(...list);
const signed = value => short(value).replace("-", "\u2212");
const bdi = text => make("bdi", "", text);

// A letter with an index: W_q.
function math(letter, index) {
    return make("span", "dg-math", letter, ...(index === undefined ? [] : [make("sub", "", index)]));
}

function svg(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
}

// -- strips --------------------------------------------------------------------------------------

// Paint one row of cells; larger magnitudes are darker, and `most` is the darkest.
function paintSigns(canvas, list, most) {
    const context = canvas.getContext("2d"), image = context.createImageData(list.length, 1);
    list.forEach((value, i) => {
        const colour = rgbOf(value < 0 ? theme.below : theme.above), part = most > 0 ? Math.min(Math.abs(value) / most, 1) : 0;
        image.data.set([...colour, Math.round(255 * Math.sqrt(part))], 4 * i);
    });
    context.putImageData(image, 0, 0);
}

// options: most (the darkest number), cells (a narrow strip, of this many pixels each)
function strip(name, list, options = {}) {
    const canvas = make("canvas", "dg-strip");
    canvas.width = list.length;
    canvas.height = 1;
    const box = make("span", "dg-strip-box", canvas);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", t("diagram.strip", {name, n: list.length, least: signed(Math.min(...list)),
        most: signed(Math.max(...list)), length: short(lengthOf(list))}));
    box.addEventListener("pointermove", event => {
        const {left, width} = canvas.getBoundingClientRect();
        const i = Math.min(Math.max(Math.floor((event.clientX - left) / width * list.length), 0), list.length - 1);
        box.title = t("diagram.channel", {i, value: signed(list[i])});
    });
    paintSigns(canvas, list, options.most ?? sizeOf(list));
    return box;
}

// A strip with its name, shape and length.
function vector(name, list, options = {}) {
    const label = typeof name === "string" ? name : name.textContent;
    return make("div", "dg-vector", make("span", "dg-vector-name", name), strip(label, list, options),
        make("span", "small dg-vector-note", `[${list.length}]`,
            ...(options.note === "" ? [] : [" · ", t("diagram.length", {n: short(lengthOf(list))})])));
}

// -- arrows and boxes ----------------------------------------------------------------------------

const shapeText = shape => shape.join(" × ");

// An arrow with the shape of its data.
function arrow(shape, name) {
    const line = svg("svg", {viewBox: "0 0 46 10", width: 46, height: 10, "aria-hidden": "true"},
        svg("path", {d: "M0 5H40M36 1l5 4-5 4"}));
    return make("span", "dg-arrow", make("span", "dg-shape", ...(name ? [name, " "] : []), shapeText(shape)), line);
}

const operation = (...content) => make("span", "dg-operation", ...content);

// The path of a block: from the stream at its top, into the stream at its bottom.
function branch() {
    const line = (kind, d, ...more) => svg("svg", {class: `dg-branch ${kind}`, viewBox: "0 0 44 24",
        width: 44, height: 24, "aria-hidden": "true"}, svg("path", {d}), ...more);
    return [line("out", "M10 2C10 12 16 12 24 12H38M34 8l5 4-5 4"),
        line("into", "M44 12H20M24 8l-5 4 5 4", svg("circle", {cx: 10, cy: 12, r: 8}),
            svg("path", {d: "M10 8v8M6 12h8"}))];
}

function button(className, label, onClick, ...content) {
    const node = make("button", className, ...content);
    node.type = "button";
    if (label) node.setAttribute("aria-label", label);
    node.addEventListener("click", onClick);
    return node;
}

function bar(part, className = "") {
    const now = make("i", className);
    now.style.width = `${100 * Math.min(Math.max(part, 0), 1)}%`;
    return make("span", "dg-bar", now);
}
