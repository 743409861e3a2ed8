// Generation, token by token. The library's decoder returns the next token (the request
// `generate`), which is appended to the text. The page also shows the cache of keys and values,
// whose bytes the library reports.

const generation = {steps: [], busy: false, seed: 0}; // steps whose tokens are still in the text
const CACHES = ["f32", "f16", "bf16", "int8"], ROOM = 16;
const lastStep = () => generation.steps.at(-1);
const whole = n => n.toLocaleString(language);

// -- requests ------------------------------------------------------------------------------------

async function generateToken() {
    if (generation.busy || !answer?.next) return;
    generation.busy = true;
    markGeneration();
    const before = asked.text;
    try {
        const step = await (await post("generate", {...runOf(), text: before, seed: generation.seed++})).json();
        if (asked.text === before) takeStep(step, before);
    } catch (error) {
        showFailure(error);
    }
    generation.busy = false;
    markGeneration();
}

function takeStep(step, before) {
    const after = before + step.appended;
    byId("generate-state").textContent = t(step.ended ? "generate.ended" : step.appended ? "generate.appended"
        : "generate.special", {token: step.text || "\u2423", share: percentOf(step.p)});
    if (after === before) return;
    generation.steps.push({...step, before, after});
    writeText(after);
}

function writeText(text) {
    asked.text = byId("live-text").value = text;
    ask("maps");
    rememberPlace();
}

function takeBack() {
    const step = lastStep();
    byId("generate-state").textContent = t("generate.taken", {token: step.text});
    generation.steps.pop();
    writeText(step.before);
}

// -- drawing -------------------------------------------------------------------------------------

function markGeneration() {
    byId("generate-next").disabled = generation.busy;
    byId("generate-back").hidden = !generation.steps.length;
    byId("generate").toggleAttribute("data-busy", generation.busy);
}

// A number for each layer, written as one factor if all are equal.
function headsText({kv_heads: kv}) {
    const layers = kv.filter(n => n > 0);
    if (layers.every(n => n === layers[0])) return t("generate.layers", {layers: layers.length, heads: layers[0]});
    return t("generate.heads", {heads: layers.reduce((a, b) => a + b, 0)});
}

function cacheFormula(cache) {
    const scale = cache.head_bytes / 2 - cache.head_dim * cache.number_bytes;
    return t("generate.formula", {heads: headsText(cache), numbers: cache.head_dim, size: cache.number_bytes,
        scale: scale ? t("generate.scale", {n: scale}) : "", tokens: cache.tokens, bytes: whole(cache.bytes - cache.state_bytes)});
}

// Columns are tokens; rows are the key/value heads of each layer, keys above values.
function cachePicture(cache) {
    const {tokens, kv_heads: kv} = cache, last = lastStep(), room = ROOM * Math.ceil((tokens + 1) / ROOM);
    const added = last ? Math.max(tokens - (last.cache?.tokens ?? tokens - 1), 0) : 0;
    const parts = [], gap = 1;
    let y = 0, lines = "";
    for (const heads of kv.filter(n => n > 0)) {
        for (const kind of ["k", "v"]) {
            parts.push(svg("rect", {class: kind, x: 0, y, width: tokens, height: heads}));
            if (added) parts.push(svg("rect", {class: "new", x: tokens - added, y, width: added, height: heads}));
            if (heads < 9) for (let h = 1; h < heads; h++) lines += `M0 ${y + h}H${tokens}`;
            y += heads;
        }
        y += gap;
    }
    for (let i = 1; i <= tokens && room <= 10 * ROOM; i++) lines += `M${i} 0V${y - gap}`;
    const image = svg("svg", {class: "generate-cache", viewBox: `0 0 ${room} ${y - gap}`, preserveAspectRatio: "none",
        role: "img", "aria-label": t("generate.picture", {tokens, heads: headsText(cache)})}, ...parts,
        svg("path", {d: lines}));
    image.style.height = `${Math.min(Math.max(3 * y, 40), 180)}px`;
    return image;
}

function stepRow(step, i) {
    const most = Math.max(...generation.steps.map(({cache}) => cache?.bytes ?? 0), 1);
    const cells = [i + 1, bdi(step.text || "\u2423"), `${percentOf(step.p)} %`, step.computed,
        step.cache ? step.kept : "\u2013", step.cache ? whole(step.cache.bytes) : "\u2013"];
    const row = make("tr", "", ...cells.map((cell, k) => make("td", k === 1 ? "" : "number", cell)),
        make("td", "", bar((step.cache?.bytes ?? 0) / most)));
    return row;
}

function drawCache() {
    if (!byId("generate-box").open || !answer) return;
    const {cache} = answer, steps = generation.steps;
    const notes = [];
    if (cache) {
        if (cache.head_dim && cache.kv_heads.some(n => n > 0)) notes.push(cacheFormula(cache));
        if (cache.state_bytes) notes.push(t("generate.states", {bytes: whole(cache.state_bytes)}));
        if (cache.bytes_all_heads !== cache.bytes)
            notes.push(t("generate.all", {bytes: whole(cache.bytes_all_heads)}));
    } else {
        notes.push(t(towers ? "generate.towers" : "generate.open"));
    }
    if (steps.length && !lastStep().cache && cache) notes.push(t("generate.whole"));
    byId("generate-formula").replaceChildren(...notes.map(text => make("span", "", text)));
    byId("generate-picture").replaceChildren(...(cache && cache.kv_heads.some(n => n > 0) ? [cachePicture(cache),
        make("p", "small", t("generate.legend"))] : []));
    byId("generate-steps").hidden = !steps.length;
    byId("generate-steps").querySelector("tbody").replaceChildren(...steps.map(stepRow).reverse());
}

function followGeneration() {
    byId("generate").hidden = !answer.next;
    generation.steps = generation.steps.filter(({after}) => asked.text.startsWith(after));
    markGeneration();
    drawCache();
}

// -- start ---------------------------------------------------------------------------------------

function buildGeneration() {
    const named = (tag, id, kind = "") => Object.assign(make(tag, kind), {id});
    const next = button("", "", generateToken, t("generate.next")), back = button("link", "", takeBack, t("generate.back"));
    next.id = "generate-next";
    back.id = "generate-back";
    const state = named("span", "generate-state", "small");
    state.setAttribute("role", "status");
    const tools = make("div", "live-line", next, back,
        knob("draws", knobInput("checkbox", {}, input => turnUnless("draws", false, input.checked))),
        knob("cache", knobSelect(CACHES.map(name => new Option(t(`knobs.cache.${name}`), name)),
            box => turnUnless("cache", CACHES[0], box.value))), state);
    const columns = ["step", "token", "chance", "computed", "kept", "bytes"].map(name => make("th", "", t(`generate.${name}`)));
    const table = make("table", "dg-table", make("caption", "unseen", t("generate.steps")),
        make("thead", "", make("tr", "", ...columns, make("td", ""))), make("tbody", ""));
    const steps = make("div", "dg-scroll", table);
    steps.id = "generate-steps";
    steps.tabIndex = 0;
    steps.setAttribute("role", "region");
    steps.setAttribute("aria-label", t("generate.steps"));
    const box = make("details", "knobs", make("summary", "", make("h2", "", t("generate")),
        make("span", "small", t("generate.about"))), tools, named("p", "generate-formula"),
        named("div", "generate-picture"), steps);
    box.id = "generate-box";
    box.addEventListener("toggle", drawCache);
    const section = make("section", "", box);
    section.id = "generate";
    section.hidden = true;
    section.setAttribute("aria-label", t("generate"));
    byId("knobs").after(section);
}

buildGeneration();
keys.push(["g", t("key.generate"), generateToken]);
followers.push(followGeneration);
