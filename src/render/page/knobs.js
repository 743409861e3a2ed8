// Controls of the model: sampling of the next token, and changes of its attention. The page marks
// changes: it shows the prediction beside the unchanged one, and at each small map the share of its
// weight that moved.

const KNOB_TEXTS = ["positions", "noisy", "cache"];
const knobInputs = {}; // by the field of a request
let knobModel = null;  // the loaded model's description, from an answer

// -- the address: knobs=causal:false,window:4 ----------------------------------------------------

const knobsText = () => Object.entries(asked.knobs).map(pair => pair.join(":")).join(",");

function knobsOf(text) {
    const pairs = (text ?? "").split(",").map(pair => pair.split(":")).filter(([name]) => Object.hasOwn(knobInputs, name));
    return Object.fromEntries(pairs.map(([name, value]) => [name, KNOB_TEXTS.includes(name) ? value
        : ["true", "false"].includes(value) ? value === "true" : Number(value)]));
}

// -- changes by the reader -----------------------------------------------------------------------

const DRAWN = ["temperature", "top_k", "draws", "cache"]; // maps do not depend on these

// value undefined: as in the model
function turnKnob(name, value) {
    if (value === undefined) delete asked.knobs[name];
    else asked.knobs[name] = value;
    if (name === "noisy" || name === "noise") {
        const {noise, noisy} = knobInputs, strength = Number(noise.value);
        for (const key of ["noise", "noisy"]) delete asked.knobs[key];
        if (strength > 0) Object.assign(asked.knobs, {noise: strength, noisy: noisy.value});
    }
    followKnobs();
    ask(DRAWN.includes(name) ? "next" : "maps");
    rememberPlace();
}

function resetKnobs() {
    asked.knobs = {};
    markKnobs();
    ask("maps");
    rememberPlace();
}

// Set the controls to the state of `asked`.
function markKnobs() {
    const {causal, scaled, positions, rope_base: base, window: width, temperature, top_k: k, noise, noisy, draws, cache, kv_heads: kv} = knobInputs;
    const now = asked.knobs;
    temperature.value = now.temperature ?? 1;
    k.value = now.top_k ?? 0;
    scaled.checked = now.scaled ?? true;
    draws.checked = now.draws ?? false;
    cache.value = now.cache ?? cache.options[0].value;
    width.value = now.window ?? "";
    noise.value = now.noise ?? 0;
    if (now.noisy) noisy.value = now.noisy;
    if (knobModel) {
        causal.checked = now.causal ?? knobModel.causal;
        positions.value = now.positions ?? knobModel.positions;
        base.value = now.rope_base ?? knobModel.rope_base;
        kv.value = now.kv_heads ?? knobModel.kv_heads;
    }
    followKnobs();
}

function followKnobs() {
    const rotary = (asked.knobs.positions ?? knobModel?.positions) === "rotary";
    knobInputs.rope_base.closest("label").hidden = !rotary;
    byId("knobs-temperature").textContent = short(asked.knobs.temperature ?? 1);
    byId("knobs-noise").textContent = short(asked.knobs.noise ?? 0);
    byId("knobs-reset").hidden = !Object.keys(asked.knobs).length;
}

// -- effects of the changes ----------------------------------------------------------------------

const SEEN_SHARE = 0.0005;

function markMoved() {
    thumbs.forEach(({button}, i) => {
        const share = answer.moved?.[i] ?? 0, seen = share >= SEEN_SHARE, {name, badge} = panels[i];
        button.classList.toggle("moved", seen);
        button.style.setProperty("--moved", share);
        button.title = [name, badge, seen && t("knobs.moved.share", {n: percentOf(share)})].filter(Boolean).join(" · ");
    });
    const order = (answer.moved ?? []).map((share, i) => [share, i]).filter(([share]) => share >= SEEN_SHARE)
        .sort((a, b) => b[0] - a[0]);
    const list = order.slice(0, 4).map(([share, i]) => `${panels[i].name} ${percentOf(share)} %`).join(", ");
    byId("knobs-moved").textContent = !answer.moved ? "" : order.length ? t("knobs.moved", {list}) : t("knobs.moved.none");
}

function followKnobAnswer() {
    if (!knobModel) {
        knobModel = answer.model;
        for (const option of knobInputs.positions.options)
            if (option.value === "learned" && knobModel.positions !== "learned") option.remove();
        const divisors = Array.from({length: knobModel.kv_heads}, (_, i) => i + 1).filter(n => knobModel.kv_heads % n === 0);
        knobInputs.kv_heads.replaceChildren(...divisors.map(n => new Option(n)));
        knobInputs.kv_heads.closest("label").hidden = divisors.length < 2;
        knobInputs.noisy.replaceChildren(...panels.map(panel => new Option(panel.name)));
        markKnobs();
    }
    if (answer.maps) markMoved();
    const {cache} = answer;
    byId("knobs-bytes").textContent = asked.knobs.kv_heads && cache
        ? t("knobs.bytes", {bytes: whole(cache.bytes), before: whole(cache.bytes_loaded)}) : "";
    const changed = Object.keys(asked.knobs).some(name => !DRAWN.includes(name));
    byId("live-tokens").querySelector("th.for-change").textContent = t(changed ? "next.unchanged" : "next.whole");
    byId("live-next").querySelector(".live-key span:last-child").textContent =
        t(changed ? "next.unchanged" : "next.heads-on");
}

// -- start ---------------------------------------------------------------------------------------

function knob(name, control, ...after) {
    knobInputs[name] = control;
    return make("label", "field knob", control.type === "checkbox" ? control : "", t(`knobs.${name}`), " ",
        ...(control.type === "checkbox" ? [] : [control]), ...after);
}

function knobInput(type, options, read) {
    const input = Object.assign(make("input", ""), {type, ...options});
    input.addEventListener(type === "number" ? "change" : "input", () => read(input));
    return input;
}

function knobSelect(options, onChange) {
    const box = make("select", "");
    box.append(...options);
    box.addEventListener("change", () => onChange(box));
    return box;
}

function knobOutput(id) {
    const node = make("output", "small knob-value");
    node.id = id;
    return node;
}

const knobGroup = (name, ...content) => {
    const box = make("fieldset", "knob-group", make("legend", "", t(name)), ...content);
    return box;
};

// Choosing the model's own value removes the change.
const turnUnless = (name, own, value) => turnKnob(name, value === own ? undefined : value);

function buildKnobs() {
    const numbers = [1, 2, 3, 5, 10].map(n => new Option(n, n));
    const drawn = knobGroup("knobs.draw",
        knob("temperature", knobInput("range", {min: 0.1, max: 2, step: 0.1},
            input => turnUnless("temperature", 1, Number(input.value))), knobOutput("knobs-temperature")),
        knob("top_k", knobSelect([new Option(t("knobs.all"), 0), ...numbers],
            box => turnUnless("top_k", 0, Number(box.value)))));
    const kinds = ["none", "learned", "sinusoidal", "rotary"].map(kind => new Option(t(`knobs.positions.${kind}`), kind));
    const merged = knob("kv_heads", knobSelect([], box => turnUnless("kv_heads", knobModel?.kv_heads, Number(box.value))));
    merged.title = t("knobs.kv_heads.about");
    const attention = knobGroup("knobs.attention",
        knob("causal", knobInput("checkbox", {}, input => turnUnless("causal", knobModel?.causal, input.checked))),
        knob("scaled", knobInput("checkbox", {}, input => turnUnless("scaled", true, input.checked))),
        knob("window", knobInput("number", {min: 1, max: 1e6, step: 1, placeholder: t("knobs.all")},
            input => turnKnob("window", input.value >= 1 ? Math.floor(input.value) : undefined))),
        knob("positions", knobSelect(kinds, box => {
            if (box.value !== "rotary") delete asked.knobs.rope_base;
            turnUnless("positions", knobModel?.positions, box.value);
        })),
        knob("rope_base", knobInput("number", {min: 1.1, max: 1e9, step: "any"},
            input => turnUnless("rope_base", knobModel?.rope_base, input.value > 1 ? Number(input.value) : undefined))),
        merged, knobOutput("knobs-bytes"));
    const noise = knobGroup("knobs.noises",
        knob("noisy", knobSelect([], () => turnKnob("noisy"))),
        knob("noise", knobInput("range", {min: 0, max: 3, step: 0.25}, () => turnKnob("noise")),
            knobOutput("knobs-noise")));
    const reset = button("link", "", resetKnobs, t("knobs.reset")), moved = make("p", "small knobs-moved");
    reset.id = "knobs-reset";
    moved.id = "knobs-moved";
    moved.setAttribute("role", "status");
    const box = make("details", "knobs", make("summary", "", make("h2", "", t("knobs")),
        make("span", "small", t("knobs.about"))),
        make("div", "knob-groups", drawn, attention, noise), make("div", "live-line", reset, moved));
    box.id = "knobs-box";
    const section = make("section", "", box);
    section.id = "knobs";
    section.setAttribute("aria-label", t("knobs"));
    byId("live-panel").after(section);
}

buildKnobs();
followers.push(followKnobAnswer);
