// An opened head: one query and one key from x to the head's term in the stream, as a list of
// steps.

const MOST_KEYS = 24, MOST_VALUES = 5; // rows of the table of scores; values drawn

function headPanel() {
    const {head, row, key} = diagram.trace, name = `L${head.layer}H${head.head}`;
    const close = button("icon", t("diagram.pair.close", {head: name}), () => openHead(name), "×");
    close.dataset.dg = "close";
    const title = make("div", "dg-pair", make("h4", "", ...tNodes("diagram.pair", {head: name,
        query: bdi(wordAt(row)), key: bdi(wordAt(key))})), close);
    const steps = [inputStep, projectStep, rotateStep, productStep, scoreStep, valueStep, concatStep, writeStep,
        addStep].map(make => make(diagram.trace)).filter(Boolean);
    const panel = make("section", "dg-panel", title, make("ol", "dg-steps", ...steps));
    panel.id = "diagram-head";
    panel.setAttribute("aria-label", title.textContent);
    return panel;
}

const headStep = (title, ...content) => make("li", "", make("h5", "", ...title), ...content);
const small = nodes => make("p", "small", ...nodes);
const pairMost = (a, b) => ({most: Math.max(sizeOf(a), sizeOf(b))});

// -- from x to the score -------------------------------------------------------------------------

function inputStep({head, row, key, layers}) {
    const options = pairMost(head.query_input, head.key_input);
    const norm = layers[head.layer].norms_input ? t("diagram.input.norm") : "";
    return headStep([t("diagram.input")], small(tNodes("diagram.input.about", {norm})),
        vector(make("span", "", "x ", bdi(wordAt(row))), head.query_input, options),
        vector(make("span", "", "x ", bdi(wordAt(key))), head.key_input, options));
}

function projectStep({head, model}) {
    const D = head.query.length, shape = `[${D}, ${model.width}]`, i = head.channel;
    const line = (letter, plain, weight) => [vector(make("span", "", math("W", letter), " ",
        t("diagram.row", {i})), weight, {note: ""}), vector(letter, plain)];
    return headStep([t("diagram.project"), " ", make("span", "dg-formula", "q = ", math("W", "q"), " x,  k = ",
        math("W", "k"), " x   ", shape)],
        ...line("q", head.query_plain, head.query_weight), ...line("k", head.key_plain, head.key_weight),
        small(tNodes("diagram.project.channel", {i, name: "q", value: signed(head.query_plain[i])})));
}

function rotateStep({head, row, key}) {
    if (!head.rotary_dim && !head.normalised) return null;
    const options = pairMost(head.query, head.key);
    const text = head.normalised ? small(tNodes("diagram.normalise.about", {rotated: head.rotary_dim
        ? t("diagram.normalise.rotated") : ""}))
        : small(tNodes("diagram.rotate.about", {row, key, distance: row - key}));
    return headStep([t(head.normalised ? "diagram.normalise" : "diagram.rotate")], text,
        vector("q", head.query, options), vector("k", head.key, options));
}

function productChart(products, label) {
    const most = sizeOf(products) || 1, width = 6 * products.length, half = 36;
    const bars = products.map((value, i) => {
        const size = Math.max(half * Math.abs(value) / most, 0.5);
        return svg("rect", {x: 6 * i + 0.5, width: 5, y: value < 0 ? half : half - size, height: size,
            class: value < 0 ? "below" : "above"}, svg("title", {}, t("diagram.channel", {i, value: signed(value)})));
    });
    return svg("svg", {class: "dg-chart", viewBox: `0 0 ${width} ${2 * half}`, preserveAspectRatio: "none", role: "img",
        "aria-label": label}, svg("path", {d: `M0 ${half}H${width}`}), ...bars);
}

function channelTable({query, key, products}) {
    const head = make("tr", "", ...[t("diagram.products.channel"), "q", "k", t("diagram.products.product")]
        .map(text => make("th", "", text)));
    const rows = products.map((value, i) => make("tr", "", ...[i, signed(query[i]), signed(key[i]), signed(value)]
        .map(text => make("td", "number", text))));
    const box = make("div", "dg-scroll", make("table", "dg-table", make("thead", "", head), make("tbody", "", ...rows)));
    box.tabIndex = 0;
    return make("details", "dg-more", make("summary", "", t("diagram.products.all", {n: products.length})), box);
}

function productStep({head, key}) {
    const {products, channel: i} = head, score = signed(head.raw[key]);
    const label = t("diagram.products.chart", {n: products.length, least: signed(Math.min(...products)),
        most: signed(Math.max(...products)), score});
    return headStep([t("diagram.products")], productChart(products, label),
        small(tNodes("diagram.products.about", {n: products.length, score, i, q: signed(head.query[i]),
            k: signed(head.key[i]), product: signed(products[i])})), channelTable(head));
}

// -- the row -------------------------------------------------------------------------------------

const weightText = weight => weight > 0 && weight < 0.0001 ? "< 0.0001" : weight.toFixed(4);
const isMasked = (head, key) => head.biased[key] === -Infinity;

// The keys of a long row with the largest weights, in order, and the chosen key.
function keysOf({head, key, tokens}) {
    const all = Array.from({length: tokens}, (_, s) => s);
    if (tokens <= MOST_KEYS) return all;
    const largest = new Set(all.toSorted((a, b) => head.weights[b] - head.weights[a]).slice(0, MOST_KEYS - 1));
    return all.filter(s => largest.has(s) || s === key);
}

function maskedText({head, row, key, model}) {
    return small(tNodes(model.causal && key > row ? "diagram.scores.masked" : "diagram.scores.hidden",
        {query: bdi(wordAt(row)), key: bdi(wordAt(key))}));
}

const differs = (a, b) => a.some((value, s) => Number.isFinite(b[s]) && value !== b[s]);

function pairLines(trace) {
    const {head, key} = trace, lines = [];
    const line = text => lines.push(make("p", "dg-formula", ...text));
    line(tNodes("diagram.scores.scale", {score: signed(head.raw[key]), scale: short(head.scale),
        value: signed(head.scaled[key])}));
    if (head.capped) line(tNodes("diagram.scores.cap", {n: short(head.softcap), value: signed(head.capped[key])}));
    if (isMasked(head, key)) return [...lines, maskedText(trace)];
    if (differs(head.capped ?? head.scaled, head.biased))
        line(tNodes("diagram.scores.bias", {value: signed(head.biased[key])}));
    line(tNodes("diagram.scores.softmax", {value: make("sup", "", signed(head.biased[key])),
        n: head.biased.filter(Number.isFinite).length, weight: weightText(head.weights[key])}));
    return lines;
}

function scoreRow({head, key}, s, columns) {
    const choose = button("link", t("diagram.scores.choose", {token: wordAt(s)}), () => chooseKey(s), bdi(wordAt(s)));
    choose.dataset.dg = `key ${s}`;
    const masked = isMasked(head, s), row = make("tr", s === key ? "here" : "", make("th", "", choose),
        ...columns.map(([, list]) => make("td", "number", masked && list === head.biased ? t("diagram.masked")
            : signed(list[s]))),
        make("td", "number", masked ? "0" : weightText(head.weights[s])), make("td", "", bar(head.weights[s])));
    if (s === key) row.setAttribute("aria-current", "true");
    row.classList.toggle("masked", masked);
    return row;
}

function scoreTable(trace) {
    const {head, row, tokens} = trace, shown = keysOf(trace);
    const columns = [["q · k", head.raw], [t("diagram.scores.scaled"), head.scaled],
        ...(head.capped ? [[t("diagram.scores.capped"), head.capped]] : []),
        ...(differs(head.capped ?? head.scaled, head.biased) ? [[t("diagram.scores.biased"), head.biased]] : [])];
    const head_ = make("tr", "", make("th", "", t("diagram.scores.token")), ...columns.map(([name]) =>
        make("th", "", name)), make("th", "", t("diagram.scores.weight")), make("th", ""));
    const table = make("table", "dg-table", make("caption", "unseen", t("diagram.scores.row", {token: wordAt(row)})),
        make("thead", "", head_), make("tbody", "", ...shown.map(s => scoreRow(trace, s, columns))));
    const box = make("div", "dg-scroll", table);
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", t("diagram.scores.row", {token: wordAt(row)}));
    if (shown.length === tokens) return [box];
    const rest = 1 - shown.reduce((sum, s) => sum + head.weights[s], 0);
    return [box, small(tNodes("diagram.scores.rest", {n: tokens - shown.length, share: (100 * rest).toFixed(1)}))];
}

function scoreStep(trace) {
    return headStep([t("diagram.scores")], ...pairLines(trace), ...scoreTable(trace));
}

// -- from the weights to the stream --------------------------------------------------------------

function valueStep({head, tokens, row}) {
    const D = head.output.length, order = Array.from({length: tokens}, (_, s) => s)
        .filter(s => head.weights[s] > 0).sort((a, b) => head.weights[b] - head.weights[a]);
    const parts = order.slice(0, MOST_VALUES).map(s => [s, head.values.subarray(s * D, (s + 1) * D)
        .map(value => value * head.weights[s])]);
    const most = Math.max(...parts.map(([, list]) => sizeOf(list)), sizeOf(head.output));
    const off = asked.off.has(`L${head.layer}H${head.head}`);
    return headStep([t("diagram.values"), " ", make("span", "dg-formula", `z [${D}]`)], small(tNodes("diagram.values.about")),
        ...parts.map(([s, list]) => vector(make("span", "", `${weightText(head.weights[s])} v `, bdi(wordAt(s))), list,
            {most})),
        ...(order.length > parts.length ? [small(tNodes("diagram.values.rest", {n: order.length - parts.length}))] : []),
        ...(off ? [small(tNodes("diagram.values.off"))] : []), vector("z", head.output, {most}));
}

function concatStep({head}) {
    const D = head.output.length, n = head.concatenated.length / D;
    const line = vector("c", head.concatenated), frame = make("i", "dg-frame");
    frame.style.left = `${100 * head.head / n}%`;
    frame.style.width = `${100 / n}%`;
    line.querySelector(".dg-strip-box").append(frame);
    return headStep([t("diagram.concat.title"), " ", make("span", "dg-formula", `[${n} × ${D}]`)],
        small(tNodes("diagram.concat.about", {n})), line);
}

function writeStep({head, layers, model}) {
    const {norms} = layers[head.layer], all = norms.reduce((sum, norm) => sum + norm, 0);
    return headStep([t("diagram.write"), " ", make("span", "dg-formula", math("W", "o"), " z   ",
        `[${model.width}, ${head.output.length}]`)],
        small(tNodes("diagram.write.about", {n: head.output.length, matrix: math("W", "o"), share: (all > 0 ? 100 * norms[head.head] / all : 0)
            .toFixed(1)})), vector(t("diagram.head.writes", {n: ""}).trim(), head.written));
}

function addStep({head, layers, model}) {
    const layer = layers[head.layer];
    const options = {most: Math.max(sizeOf(layer.stream), sizeOf(layer.attention), sizeOf(layer.middle))};
    return headStep([t("diagram.add")], vector(t("diagram.add.stream"), layer.stream, options),
        vector(t("diagram.add.heads"), layer.attention, options),
        ...(model.post_norm || layer.norms_branch ? [make("p", "small", addsText(model, layer))] : []),
        vector(t("diagram.add.after"), layer.middle, options));
}
