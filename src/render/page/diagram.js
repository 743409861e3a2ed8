// From a token to the next token: the residual stream from top to bottom, with all heads of each
// layer. Opening a head shows its steps (diagram_head.js). The library computes the numbers (the
// request `trace`).

const diagram = {row: -1, key: -1, head: "", open: new Set(), trace: null, asked: null, again: false};
const ALL_LAYERS = 4; // with more layers, layers are closed at first

// -- requests ------------------------------------------------------------------------------------

// Request the trace after the maps, which answer a key press first.
function askForTrace() {
    if (!byId("diagram-box").open || !asked.text.trim() || !panels.length) return;
    diagram.again = true;
    if (!diagram.asked) askTraces();
}

async function askTraces() {
    while (diagram.again) {
        diagram.again = false;
        diagram.asked = new AbortController();
        markDiagram();
        const body = {...runOf(), cell: [diagram.row, diagram.key]};
        if (panels.some(panel => panel.name === diagram.head)) body.head = diagram.head;
        try {
            takeTrace(await (await post("trace", body, diagram.asked.signal)).json());
            byId("diagram-failed").hidden = true;
        } catch (error) {
            if (error.name !== "AbortError") showTraceFailure(error);
        }
    }
    diagram.asked = null;
    markDiagram();
}

const markDiagram = () => byId("diagram").toggleAttribute("data-busy", Boolean(diagram.asked));

function showTraceFailure(error) {
    byId("diagram-failed").hidden = false;
    byId("diagram-failed").textContent = t("diagram.failed", {reason: error.message});
}

// After a text with other tokens, show the last token and the key of largest weight again.
function followAnswer() {
    const tokens = answer.tokens;
    if (diagram.row >= tokens) diagram.row = -1;
    diagram.key = -1;
    askForTrace();
}

const VECTORS = ["stream", "attention", "middle", "feed_forward", "next"];
const HEAD_VECTORS = ["query_input", "key_input", "query_weight", "key_weight", "query_plain", "key_plain", "query",
    "key", "values", "raw", "scaled", "capped", "biased", "weights", "output", "concatenated", "written"];

function decodeTrace(trace) {
    const decode = (of, names) => { for (const name of names) of[name] = floatsOf(of[name]); };
    decode(trace.embedding, ["token", "position", "type"]);
    decode(trace, ["last"]);
    for (const layer of trace.layers) decode(layer, VECTORS);
    if (trace.head) decode(trace.head, HEAD_VECTORS);
    return trace;
}

function takeTrace(trace) {
    const first = !diagram.trace;
    diagram.trace = decodeTrace(trace);
    if (first && trace.layers.length <= ALL_LAYERS) trace.layers.forEach((_, l) => diagram.open.add(l));
    drawDiagram();
}

// -- the selection -------------------------------------------------------------------------------

const itemAt = position => rowItems.find(item => item.from <= position && position <= item.to);
const wordAt = position => itemAt(position)?.text || "\u2423";

function openHead(name) {
    const same = diagram.head === name;
    diagram.head = same ? "" : name;
    diagram.key = -1;
    const i = panels.findIndex(panel => panel.name === name);
    if (!same && i !== state.panel) choosePanel(i);
    askForTrace();
}

function chooseKey(key) {
    diagram.key = key;
    askForTrace();
}

function listTokens() {
    const box = byId("diagram-token"), last = rowItems.at(-1);
    const options = rowItems.map(item => new Option(`${item.place} ${item.text}`, item.to));
    box.replaceChildren(new Option(t("diagram.last", {token: last?.text ?? ""}), -1), ...options);
    box.value = diagram.row;
}

// A cell that is locked in the map is the pair of tokens of the open head.
function followCell() {
    if (!state.locked || !diagram.head || panels[state.panel]?.name !== diagram.head) return;
    const row = rowItems[state.row]?.to, key = colItems[state.col]?.to;
    if (row === diagram.trace?.row && key === diagram.trace?.key) return;
    diagram.row = row;
    diagram.key = key;
    askForTrace();
}

// -- drawing -------------------------------------------------------------------------------------

// A redrawn diagram keeps the focus, because its buttons have names.
function drawDiagram() {
    const focused = document.activeElement?.dataset?.dg, trace = diagram.trace;
    diagram.dark = state.dark;
    listTokens();
    diagram.most = Math.max(...trace.layers.flatMap(layer => [sizeOf(layer.stream), sizeOf(layer.next)]));
    byId("diagram-flow").replaceChildren(embeddingStep(trace), ...trace.layers.flatMap(layerSteps), logitsStep(trace));
    if (focused) byId("diagram-flow").querySelector(`[data-dg="${focused}"]`)?.focus({preventScroll: true});
}

const step = (kind, ...content) => make("li", `dg-step ${kind}`, make("i", "dg-rail"), ...content);

function embeddingStep({embedding, row, model, layers, tokens}) {
    const content = [make("h3", "", t("diagram.embedding")), make("p", "small", ...tNodes("diagram.embedding.about",
        {token: bdi(wordAt(row)), n: model.vocabulary.toLocaleString(language)}))];
    if (embedding.token) content.push(vector(t("diagram.embedding.token"), embedding.token));
    if (embedding.position) content.push(vector(t(model.positions === "sinusoidal" ? "diagram.embedding.sinusoidal"
        : "diagram.embedding.position", {n: row}), embedding.position));
    if (embedding.type) content.push(vector(t("diagram.embedding.type"), embedding.type));
    if (!embedding.position) content.push(make("p", "small", t(model.positions === "rotary"
        ? "diagram.embedding.rotary" : "diagram.embedding.none")));
    return step("dg-first", make("div", "dg-block dg-start", ...content),
        streamOf(t("diagram.stream.first"), layers[0].stream, [tokens, model.width]));
}

const streamOf = (name, list, shape) => make("div", "dg-stream", make("span", "dg-shape", shapeText(shape)),
    vector(name, list, {most: diagram.most}));

function layerSteps(layer, l) {
    const open = diagram.open.has(l), {model, tokens} = diagram.trace;
    const toggle = button("link dg-toggle", "", () => {
        if (open) diagram.open.delete(l); else diagram.open.add(l);
        drawDiagram();
    }, t(open ? "diagram.close" : "diagram.open", {n: l}));
    toggle.dataset.dg = `layer ${l}`;
    toggle.setAttribute("aria-expanded", String(open));
    const after = streamOf(t("diagram.stream", {n: l}), layer.next, [tokens, model.width]);
    const many = diagram.trace.layers.length > ALL_LAYERS;
    if (!open) return [step("dg-closed", make("div", "dg-layer", make("h3", "", t("diagram.layer", {n: l})),
        normBars(layer), toggle), after)];
    const blocks = [step("dg-open", attentionBlock(layer, l), ...(model.feed_forward_width ? [] : [after]))];
    if (model.feed_forward_width) blocks.push(step("dg-open", feedForwardBlock(layer, l), after));
    if (many) blocks[0].querySelector("h3").append(" ", toggle);
    return blocks;
}

// The norm of the output of each head of a closed layer.
function normBars(layer) {
    const most = Math.max(...layer.norms ?? [], 0);
    return make("span", "dg-norms", ...(layer.norms ?? []).map(norm => {
        const one = make("i", "");
        one.style.height = `${most > 0 ? Math.max(100 * norm / most, 4) : 4}%`;
        return one;
    }));
}

const blockOf = (...content) => make("div", "dg-block", ...branch(), ...content);

// -- attention -----------------------------------------------------------------------------------

function addsText(model, layer) {
    return t(model.post_norm ? "diagram.adds.normed" : layer.norms_branch ? "diagram.adds.branch" : "diagram.adds");
}

function attentionBlock(layer, l) {
    const {model, tokens} = diagram.trace, {heads, kv_heads: shared} = layer;
    const title = make("h3", "", t("diagram.attention", {n: l}));
    if (!heads) return blockOf(title, make("p", "small", t("diagram.heads.none")));
    const T = tokens, E = model.width, D = model.head_dim;
    const way = make("div", "dg-way", arrow([T, E]),
        ...(layer.norms_input ? [operation(t("diagram.norm")), arrow([T, E], "x")] : []),
        operation(math("W", "q"), " ", math("W", "k"), " ", math("W", "v")), arrow([heads, T, D], "q"));
    if (shared !== heads) way.append(make("span", "dg-shape", `k, v ${shapeText([shared, T, D])}`));
    const out = make("div", "dg-way", arrow([heads, T, D], "z"), operation(t("diagram.concat")),
        arrow([T, heads * D]), operation(math("W", "o")), arrow([T, E]),
        make("span", "small", addsText(model, layer)));
    const count = make("p", "small", shared === heads ? t("diagram.heads", {n: heads})
        : t("diagram.heads.shared", {n: heads, k: shared}));
    const made = blockOf(title, way, count, headButtons(layer, l), out,
        vector(t("diagram.add.heads"), layer.attention, {most: diagram.most}));
    const {head} = diagram.trace;
    if (head?.layer === l) made.insertBefore(headPanel(), out);
    return made;
}

// Where the head attends to from the row, taken from its map: cells of tokens or of blocks, and the
// largest cell.
function headLook(i) {
    const map = mapFrom(panels[i]), at = view.rows.indexOf(rowItems.indexOf(itemAt(diagram.trace.row)));
    if (at < 0) return null;
    const weights = Array.from({length: map.cols}, (_, c) =>
        map.kind?.[at * map.cols + c] ? 0 : map.value[at * map.cols + c]);
    return {weights, best: colItems[view.cols[weights.indexOf(Math.max(...weights))]]};
}

function headButtons(layer, l) {
    const most = Math.max(...layer.norms);
    return make("div", "dg-heads", ...Array.from(layer.norms, (norm, h) => {
        const name = `L${l}H${h}`, i = panels.findIndex(panel => panel.name === name), look = i < 0 ? null : headLook(i);
        const node = button("dg-head", "", () => openHead(name), make("b", "", name));
        if (look) node.append(strip(name, look.weights, {most: 1}), make("span", "dg-looks small",
            bdi(look.best.text || "\u2423"), `${Math.round(100 * Math.max(...look.weights))} %`));
        node.append(make("span", "dg-writes small", bar(most > 0 ? norm / most : 0),
            t("diagram.head.writes", {n: short(norm)})));
        node.dataset.dg = name;
        node.title = t("diagram.head.open", {head: name});
        node.setAttribute("aria-expanded", String(diagram.head === name));
        node.classList.toggle("off", asked.off.has(name));
        return node;
    }));
}

// -- feed-forward and logits ---------------------------------------------------------------------

function feedForwardBlock(layer, l) {
    const {model, tokens} = diagram.trace, T = tokens, E = model.width, F = model.feed_forward_width;
    const activation = model.feed_forward.replace("_tanh", "");
    const gated = activation.endsWith("glu");
    const way = make("div", "dg-way", arrow([T, E]),
        ...(layer.norms_input ? [operation(t("diagram.norm")), arrow([T, E])] : []),
        operation(...(gated ? [math("W", "gate"), " "] : []), math("W", "up"), ` ${activation}`),
        arrow([T, F]), operation(math("W", "down")), arrow([T, E]),
        make("span", "small", model.parallel ? t("diagram.adds.parallel") : addsText(model, layer)));
    return blockOf(make("h3", "", t("diagram.feed-forward", {n: l})), way,
        ...(layer.feed_forward ? [vector(t("diagram.adds"), layer.feed_forward, {most: diagram.most})] : []));
}

function logitsStep(trace) {
    const {model, next, tokens} = trace, E = model.width, V = model.vocabulary;
    if (!next) return step("dg-last", make("div", "dg-block dg-start",
        vector(t("diagram.stream.last"), trace.last), make("p", "small", t("diagram.encoder"))));
    const way = make("div", "dg-way", arrow([tokens, E]),
        ...(model.norm && !model.post_norm ? [operation(t("diagram.norm")), arrow([tokens, E])] : []),
        operation(math("W", "out")), arrow([tokens, V]), operation("softmax"));
    const list = make("ol", "dg-next", ...next.tokens.slice(0, 6).map(({text, p, logit}) => make("li", "",
        make("span", "dg-next-token", bdi(text || "\u2423")), make("span", "small dg-next-logit", t("diagram.next.logit", {n: signed(logit)})),
        bar(p), make("span", "dg-next-share", `${percentOf(p)} %`))));
    list.setAttribute("aria-label", t("diagram.next"));
    return step("dg-last", make("div", "dg-block", branch()[0], make("h3", "", t("diagram.logits")), way,
        vector(t("diagram.stream.last"), trace.last),
        ...(model.tied ? [make("p", "small", t("diagram.logits.tied"))] : []), list));
}

// -- start ---------------------------------------------------------------------------------------

function buildDiagram() {
    const tokenBox = make("select", ""), flow = make("ol", "dg-flow"), failed = make("p", "small dg-failed");
    tokenBox.id = "diagram-token";
    flow.id = "diagram-flow";
    failed.id = "diagram-failed";
    failed.setAttribute("role", "status");
    failed.hidden = true;
    tokenBox.addEventListener("change", () => {
        diagram.row = Number(tokenBox.value);
        diagram.key = -1;
        askForTrace();
    });
    const box = make("details", "dg", make("summary", "", make("h2", "", t("diagram")),
        make("span", "small", t("diagram.about"))),
        make("div", "dg-tools", make("label", "field", t("diagram.token"), " ", tokenBox),
            make("span", "small", t("diagram.key"))), failed, flow);
    box.id = "diagram-box";
    box.addEventListener("toggle", askForTrace);
    const section = make("section", "", box);
    section.id = "diagram";
    section.setAttribute("aria-label", t("diagram"));
    byId("live-panel").after(section);
}

// Follow a locked cell and changed colours of the page.
function followPage() {
    const {moved, shown} = live;
    live.moved = () => { moved(); followCell(); };
    live.shown = () => {
        shown();
        if (diagram.trace && diagram.dark !== state.dark) drawDiagram();
    };
}

buildDiagram();
followPage();
followers.push(followAnswer);
