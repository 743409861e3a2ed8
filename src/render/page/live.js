// The live page: the reader types a text, the model runs, and the report's page shows the result.
// Heads can be ablated or patched from a second text; the prediction is then shown beside that of
// the unchanged model. `asked` and the page's state determine every request. The backend, server.js
// or explorer.js, defines post(place, state, signal) and restart(), and calls startLive().

let example = "The animal didn't cross the street because it was too tired";
const asked = {text: "", other: "", source: "", attention: "cross", off: new Set(), patched: new Set(), at: "all",
    chosenRow: false, knobs: {}}; // knobs.js
let towers = false; // an encoder-decoder: the text is the target of a source
const CLICKS = ["look", "off", "patch"].map(name => [name, t(`live.${name}`)]);
let clickMeans = "look";
let answer = null; // the last answer: tokens, next
let chosenLanguage = ""; // set by the switch
const followers = []; // called with each new answer, by other parts of the page

// The state on which the model's computation depends.
function runOf() {
    if (towers) return {text: asked.text, source: asked.source, attention: asked.attention, off: [...asked.off]};
    const body = {text: asked.text, off: [...asked.off], ...asked.knobs};
    if (!asked.patched.size) return body;
    return {...body, patched: [...asked.patched], other: asked.other, at: asked.at};
}

const rowOfPrediction = () =>
    asked.chosenRow && panels.length && rowItems[state.row] ? rowItems[state.row].to : -1;

const hasText = () => (towers ? asked.source : asked.text).trim() !== "";

// -- requests: one at a time; the newest state is next -------------------------------------------

let wanted = null, asking = false; // wanted: null, "next" or "maps"
let typedAt = 0;                   // time of the oldest key press without an answer

function ask(what) {
    if (wanted !== "maps") wanted = what;
    mapAsked?.abort();
    if (!asking) askAll();
}

async function askAll() {
    asking = true;
    markBusy();
    while (wanted) {
        const what = wanted, since = typedAt;
        wanted = null;
        typedAt = 0;
        if (!hasText()) {
            answer = null;
            drawNext();
            showStatus(t(towers ? "live.source.empty" : "live.empty"), false);
            byId("main").classList.add("stale");
            continue;
        }
        try {
            const body = {...runOf(), row: rowOfPrediction(), maps: what === "maps"};
            if (panels.length && body.maps) body.head = panels[state.panel].name;
            takeAnswer(await (await post("look", body)).json(), since);
        } catch (error) {
            if (error.name === "AbortError" || !keepText()) showFailure(error);
        }
    }
    asking = false;
    markBusy();
    askForMap();
}

// Mark the page as busy, for scripts and screen readers.
function markBusy() {
    const busy = asking || missingMaps().length > 0;
    byId("live-panel").toggleAttribute("data-busy", busy);
    byId("main").setAttribute("aria-busy", String(busy));
}

function showStatus(text, wrong) {
    byId("live-status").textContent = text;
    byId("live-status").classList.toggle("wrong", wrong);
    byId("main").classList.toggle("stale", wrong);
}

function showFailure(error) {
    if (error.name !== "AbortError") showStatus(error.message, true);
}

function takeAnswer(next, since) {
    answer = next;
    if (next.maps) renew(next.maps, next.map);
    drawNext();
    drawHeads();
    const ms = Math.round(1000 * next.seconds);
    const part = asked.patched.size && asked.at === "all" && next.patched < next.tokens;
    showStatus(t(part ? "live.took.patched" : "live.took", {n: next.tokens, ms, patched: next.patched}), false);
    for (const follow of followers) follow();
    byId("live-panel").dataset.answers = Number(byId("live-panel").dataset.answers ?? 0) + 1;
    if (since && next.maps)
        requestAnimationFrame(() => setTimeout(() =>
            performance.measure("live-latency", {start: since, end: performance.now()})));
}

// -- new data in the page ------------------------------------------------------------------------

function forgetDrawn() {
    for (const kept of [scales, strongest, measured, vectors]) kept.clear();
    groupCache = null;
    stripKey = "";
}

const sameTokens = (a, b) => a.length === b.length && a.every((item, i) => item.text === b[i].text);

function renew(maps, map) {
    const first = !panels.length, followed = state.scale === data.scale, before = rowItems;
    stop();
    state.frame = -1;
    takeData(maps);
    forgetDrawn();
    if (map) takeCells(panels.find(panel => panel.name === map.head), bytesOf(map.data));
    if (first) {
        Object.assign(state, {panel: data.first_panel, scale: data.scale, cmap: data.cmap,
            view: data.view, range: data.range});
        start();
        return;
    }
    if (followed) state.scale = data.scale;
    state.hover = null;
    chooseView(state.hidden, state.rescale);
    if (!sameTokens(before, rowItems)) placeCell();
    if (restoring) restorePlace();
    restoring = false;
    showPlayer();
    buildStrips();
    listHiding();
    markView();
    markChoices();
    drawAll();
}

let restoring = false;

// A locked cell remains locked while its tokens remain; otherwise the strongest cell is shown.
function placeCell() {
    const inside = state.row < rowItems.length && state.col < colItems.length;
    if (state.locked && inside) return;
    state.locked = false;
    byId("maps").classList.remove("locked");
    chooseStrongestCell();
}

// -- large maps, one at a time -------------------------------------------------------------------

let mapAsked = null, mapTimer = 0;
const MAP_WAIT_MS = 40; // a pointer that passes over small maps requests none of them

const isExact = source => source.exact || (data.bits === 32 && !coarse);

// The maps that are drawn large and have not arrived.
function missingMaps() {
    if (!hasText()) return [];
    const shown = [shownPanel(), ...(state.view === "lines" ? litPanels(shownPanel()) : []),
        ...(state.beside >= 0 ? [state.beside] : [])];
    return shown.filter(i => panels[i] && !isExact(panels[i]));
}

function askForMap() {
    clearTimeout(mapTimer);
    if (asking || !missingMaps().length) return;
    mapTimer = setTimeout(fetchMap, MAP_WAIT_MS);
}

async function fetchMap() {
    const i = missingMaps()[0], source = panels[i];
    if (asking || i === undefined) return;
    mapAsked?.abort();
    const own = mapAsked = new AbortController();
    try {
        const reply = await post("map", {...runOf(), head: source.name}, own.signal);
        takeMap(i, source, await reply.arrayBuffer());
    } catch (error) {
        showFailure(error);
        return;
    }
    askForMap();
}

function takeCells(source, bytes) {
    if (!source || bytes.length !== 4 * rowItems.length * colItems.length) return;
    const cells = {rows: rowItems.length, cols: colItems.length, value: null, kind: null};
    decodeFloats(bytes, cells);
    source.exact = cells;
    maps.delete(source);
}

function takeMap(i, source, buffer) {
    if (panels[i] !== source) return;
    takeCells(source, new Uint8Array(buffer));
    waiting.add(thumbs[i]);
    drawWaiting();
    drawFocus();
    markBusy();
}

// -- heads that are off or patched ---------------------------------------------------------------

const setOf = mode => mode === "off" ? asked.off : asked.patched;

function toggleHeads(list, mode) {
    if (towers && mode === "patch") return;
    const names = list.map(i => panels[i].name), own = setOf(mode);
    const other = mode === "off" ? asked.patched : asked.off;
    if (mode === "patch" && !asked.other.trim()) {
        byId("live-second").open = true;
        byId("live-other").focus();
        showStatus(t("live.other.missing"), false);
        return;
    }
    const add = !names.every(name => own.has(name));
    for (const name of names) {
        other.delete(name);
        if (add) own.add(name);
        else own.delete(name);
    }
    drawHeads();
    const heads = names.length === 1 ? names[0] : t("live.heads", {n: names.length});
    say(t(!add ? "live.now-on" : mode === "off" ? "live.now-off" : "live.now-patched", {heads}));
    ask("maps");
    rememberPlace();
}

function allOn() {
    asked.off.clear();
    asked.patched.clear();
    drawHeads();
    ask("maps");
    rememberPlace();
}

function drawHeads() {
    const chip = (name, kind) => {
        const button = make("button", `live-chip ${kind}`, name);
        button.type = "button";
        button.title = t(`live.chip.${kind}`);
        button.setAttribute("aria-label", t("live.chip", {head: name, what: button.title}));
        button.addEventListener("click", () =>
            toggleHeads([panels.findIndex(panel => panel.name === name)], kind === "off" ? "off" : "patch"));
        return button;
    };
    byId("live-chips").replaceChildren(...[...asked.off].map(name => chip(name, "off")),
        ...[...asked.patched].map(name => chip(name, "patched")));
    byId("live-all-on").hidden = asked.off.size + asked.patched.size < 2;
    thumbs.forEach(({button}, i) => {
        button.classList.toggle("off", asked.off.has(panels[i].name));
        button.classList.toggle("patched", asked.patched.has(panels[i].name));
    });
}

function setClick(mode) {
    clickMeans = mode;
    byId("main").classList.toggle("clicks-off", mode === "off");
    byId("main").classList.toggle("clicks-patch", mode === "patch");
    for (const input of document.querySelectorAll('input[name="live-click"]'))
        input.checked = input.value === mode;
}

// -- the next token ------------------------------------------------------------------------------

const FEW_TOKENS = 6;
let allTokens = false;

const percentOf = p => p >= 0.0995 ? (100 * p).toFixed(1) : (100 * p).toFixed(p >= 0.00095 ? 2 : 3);

function nextLine(line, changed) {
    const bar = make("div", "live-bar"), now = make("i", "");
    now.style.width = `${100 * line.p}%`;
    bar.append(now);
    const cells = [make("td", "", make("bdi", "", line.text || "\u2423")), make("td", "", bar),
        make("td", "number", `${percentOf(line.p)} %`)];
    if ("p_drawn" in line) cells.push(make("td", "number", line.p_drawn ? `${percentOf(line.p_drawn)} %` : "0"));
    cells[0].title = t(changed ? "next.logits" : "next.logit", {id: line.id, logit: short(line.logit),
        whole: changed && short(line.logit_whole)});
    if (changed) {
        const whole = make("b", ""), difference = line.p - line.p_whole;
        whole.style.left = `${100 * line.p_whole}%`;
        bar.append(whole);
        const sign = difference > 0 ? "+" : difference < 0 ? "\u2212" : "";
        cells.push(make("td", "number whole", `${percentOf(line.p_whole)} %`),
            make("td", `number ${difference > 0 ? "live-up" : "live-down"}`,
                sign + percentOf(Math.abs(difference))));
    }
    return make("tr", "", ...cells);
}

// For a changed run, show the token that was most likely before, and the one that is now.
function drawGlance({changed, tokens}) {
    byId("live-glance").hidden = !changed;
    if (!changed) return;
    const was = tokens.reduce((best, line) => line.p_whole > best.p_whole ? line : best);
    byId("live-glance").replaceChildren(byId("live-next-title").textContent, ": ", ...[...new Set([was, tokens[0]])]
        .flatMap((line, i) => [i ? ", " : "", make("bdi", "", line.text || "\u2423"),
            ` ${percentOf(line.p_whole)} → ${percentOf(line.p)} %`]));
}

function drawNext() {
    const next = answer?.next;
    byId("live-next").hidden = !next;
    byId("live-panel").classList.toggle("changed", Boolean(next?.changed));
    byId("live-panel").classList.toggle("drawn", Boolean(next && "p_drawn" in next.tokens[0]));
    if (!next) return;
    const item = rowItems.find(item => item.from <= next.row && next.row <= item.to);
    byId("live-next-title").replaceChildren(...(item
        ? tNodes("next.after", {token: make("bdi", "", item.text)}) : tNodes("next")));
    drawGlance(next);
    byId("live-change").textContent = next.changed
        ? t("next.changed", {n: short(next.divergence)}) : "";
    const shown = allTokens ? next.tokens : next.tokens.slice(0, FEW_TOKENS);
    byId("live-tokens").tBodies[0].replaceChildren(
        ...shown.map(line => nextLine(line, next.changed)));
    byId("live-more").hidden = next.tokens.length <= FEW_TOKENS;
    byId("live-more").textContent = allTokens ? t("list.first", {n: FEW_TOKENS})
        : t("list.all", {n: next.tokens.length});
}

// -- the address ---------------------------------------------------------------------------------

function tellPlace(text) {
    text.set("text", asked.text);
    if (towers) text.set("source", asked.source);
    if (towers && asked.attention !== "cross") text.set("attention", asked.attention);
    if (asked.other) text.set("other", asked.other);
    if (asked.off.size) text.set("off", [...asked.off].join(","));
    if (asked.patched.size) text.set("patched", [...asked.patched].join(","));
    if (asked.at !== "all") text.set("at", asked.at);
    if (asked.chosenRow) text.set("next", "chosen");
    if (knobsText()) text.set("knobs", knobsText());
    if (chosenLanguage) text.set("lang", chosenLanguage);
    if (tour.at >= 0) text.set("station", station().name);
}

// Rewrite the page in the chosen language, at the same place.
function chooseLanguage(name) {
    chosenLanguage = name;
    clearTimeout(rememberTimer);
    const place = new URLSearchParams(panels.length ? placeText() : "");
    tellPlace(place);
    history.replaceState(null, "", `#${place}`);
    restart();
}

// Apply the address. Returns true if it requests another run than the page shows.
function readPlace() {
    const place = new URLSearchParams(location.hash.slice(1)), before = JSON.stringify(runOf());
    const heads = name => new Set((place.get(name) ?? "").split(",").filter(h => /^L\d{1,9}H\d{1,9}$/.test(h)));
    asked.text = place.get("text") ?? (asked.text || (towers ? "" : example));
    asked.source = place.get("source") ?? (asked.source || example);
    asked.attention = place.get("attention") === "self" ? "self" : "cross";
    asked.other = place.get("other") ?? "";
    asked.off = heads("off");
    asked.patched = heads("patched");
    asked.at = place.get("at") === "last" ? "last" : "all";
    asked.chosenRow = place.get("next") === "chosen";
    asked.knobs = knobsOf(place.get("knobs"));
    byId("knobs-box").open ||= knobsText() !== "";
    chosenLanguage = Object.hasOwn(texts, place.get("lang") ?? "") ? place.get("lang") : "";
    byId("live-text").value = asked.text;
    byId("live-other").value = asked.other;
    byId("live-source").value = asked.source;
    byId("live-second").open ||= asked.other !== "";
    markLive();
    readStation(place);
    return JSON.stringify(runOf()) !== before;
}

function markLive() {
    markKnobs();
    for (const [name, value] of [["live-at", asked.at], ["live-attention", asked.attention],
        ["live-row", asked.chosenRow ? "chosen" : "last"]])
        for (const input of document.querySelectorAll(`input[name="${name}"]`))
            input.checked = input.value === value;
}

// -- saving --------------------------------------------------------------------------------------

async function saveReport() {
    const body = {...runOf(), row: rowOfPrediction(), head: panels[state.panel].name,
        cell: [state.row, state.col], view: state.view === "neurons" ? "map" : state.view,
        cmap: state.cmap, scale: state.scale, dark: state.dark};
    try {
        download("heads.html", "text/html", await (await post("save", body)).blob());
    } catch (error) {
        showFailure(error);
    }
}

// -- start ---------------------------------------------------------------------------------------

function onType(event) {
    const name = event.target.id.slice("live-".length); // text, other or source
    asked[name] = event.target.value;
    typedAt ||= performance.now();
    if (name !== "other" || asked.patched.size) ask("maps");
    if (panels.length) rememberPlace();
}

// A click on a small map acts as chosen above the maps; with Alt it always ablates the head.
function pickHead(i, event) {
    const mode = event.altKey ? "off" : clickMeans;
    if (mode === "look") return false;
    toggleHeads([i], mode);
    return false; // also select the map
}

live = {
    shown: askForMap,
    plays: () => Boolean(answer?.training),
    moved() {
        if (asked.chosenRow && answer?.next && answer.next.row !== rowOfPrediction()) ask("next");
    },
    pick: pickHead,
    pickGroup(list) { if (clickMeans !== "look") toggleHeads(list, clickMeans); },
    tell: tellPlace,
    follow() {
        if (!readPlace()) return false;
        restoring = true;
        ask("maps");
        return true;
    }
};

keys.push(["x", t("key.off"), () => toggleHeads([state.panel], "off")],
    ["X", t("key.layer-off"),
        () => toggleHeads(groupList().find(g => g.list.includes(state.panel)).list, "off")],
    ["y", t("key.patch"), () => toggleHeads([state.panel], "patch")],
    ["a", t("key.all-on"), allOn], ["e", t("key.edit"), () => byId("live-text").focus()]);
saves.unshift(["report", [["HTML", saveReport]]]);
// With small maps the page does not have the numbers of all maps, so it cannot save them as CSV or
// JSON. The report has them.
saves.find(([name]) => name === "maps")[1].splice(2);

function buildLanguages() {
    const box = byId("live-language");
    for (const name of Object.keys(texts)) box.append(new Option(texts[name].language, name));
    box.value = language;
    box.addEventListener("change", () => chooseLanguage(box.value));
}

// Fill in the facts that the program wrote above the input.
function fillFacts() {
    for (const name of document.querySelectorAll(".facts dt")) {
        name.dataset.given ??= name.textContent;
        name.textContent = given(name.dataset.given);
    }
}

// The parts of a page of an encoder-decoder: a source, and which attention the maps show. Patches, changed
// architectures, the steps of a head and the tour are for one text.
function buildTowers() {
    const names = [...document.querySelectorAll(".facts dt")].map(name => name.textContent);
    towers = names.includes("source tokens, at most");
    if (!towers) return;
    byId("live-towers").hidden = false;
    byId("live-text-name").textContent = t("live.target");
    byId("live-text").placeholder = t("live.target.type");
    for (const part of document.querySelectorAll("#live-second, #knobs, #plane, #diagram, #tour, #generate label"))
        part.classList.add("unseen-part");
    buildChoices(byId("live-attention"), "live-attention",
        [["cross", t("live.attention.cross")], ["self", t("live.attention.self")]], asked.attention, value => {
            asked.attention = value;
            asked.off.clear(); // they are heads of the other attention
            ask("maps");
            rememberPlace();
        });
    byId("live-source").addEventListener("input", onType);
}

function startLive() {
    buildLanguages();
    buildTowers();
    fillFacts();
    if (!towers) buildTour();
    buildChoices(byId("live-click"), "live-click", towers ? CLICKS.slice(0, 2) : CLICKS, clickMeans, setClick);
    buildChoices(byId("live-at"), "live-at", [["all", t("live.at.all")], ["last", t("live.at.last")]], asked.at,
        value => { asked.at = value; if (asked.patched.size) ask("maps"); rememberPlace(); });
    buildChoices(byId("live-row"), "live-row", [["last", t("next.last")], ["chosen", t("next.chosen")]], "last",
        value => { asked.chosenRow = value === "chosen"; ask("next"); rememberPlace(); });
    byId("live-text").addEventListener("input", onType);
    byId("live-other").addEventListener("input", onType);
    byId("live-all-on").addEventListener("click", allOn);
    byId("live-more").addEventListener("click", () => { allTokens = !allTokens; drawNext(); });
    readPlace();
    ask("maps");
    byId("live-text").focus();
    byId("live-text").setSelectionRange(asked.text.length, asked.text.length);
}
