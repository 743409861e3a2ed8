
// The explorer's backend: the library in a worker, with the model of this file or a model that the
// reader opens.

const ended = () => new DOMException("ended", "AbortError");
const unzip = bytes => new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")))
    .arrayBuffer();

// Five digits of base 85 for four bytes, as src/render/html_live.c writes them.
function bytesOf85(text) {
    const bytes = new Uint8Array(Math.floor(text.length / 5 * 4));
    for (let from = 0, to = 0; from < text.length; from += 5, to += 4) {
        let n = 0;
        for (let k = 0; k < 5; k++) {
            // the greatest digit
            const code = from + k < text.length ? text.charCodeAt(from + k) : 119;
            n = n * 85 + (code === 120 ? 25 : code - 35);
        }
        for (let k = 0; k < 4; k++) bytes[to + k] = n / 2 ** (24 - 8 * k);
    }
    return bytes;
}

// The bytes of a file in the page, or a promise of them.
function contentOf(part) {
    const bytes = bytesOf85(part.textContent);
    return "gzip" in part.dataset ? unzip(bytes).then(all => new Uint8Array(all)) : bytes;
}

// Take all parts of the file that are not the page. The page is then small enough to be stored as
// text.
function takeParts() {
    const module = byId("explorer-module"), worker = byId("explorer-worker");
    const files = [...document.querySelectorAll(".explorer-file")];
    const taken = {
        module: unzip(bytesOf85(module.textContent)),
        worker: URL.createObjectURL(new Blob([worker.textContent], {type: "text/javascript"})),
        text: module.dataset.text, running: null, opened: null, ready: false, opening: false, asked: new Map(), count: 0,
        model: {path: module.dataset.path, name: module.dataset.name,
            files: files.map(part => ({name: part.dataset.name, content: contentOf(part)}))}
    };
    for (const part of [module, worker, ...files]) part.remove();
    taken.page = document.documentElement.outerHTML;
    return taken;
}

const parts = window.multihead ??= takeParts(); // survives writeOver()

// -- the worker ----------------------------------------------------------------------------------

function call(message) {
    const id = ++parts.count;
    return new Promise((resolve, reject) => {
        parts.asked.set(id, {resolve, reject});
        parts.running.postMessage({...message, id});
    });
}

function endWorker() {
    parts.running?.terminate();
    for (const {reject} of parts.asked.values()) reject(ended());
    parts.asked.clear();
}

function onAnswer({data}) {
    if (data.reading !== undefined) return showReading(data);
    const {resolve, reject} = parts.asked.get(data.id) ?? {};
    parts.asked.delete(data.id);
    if (data.lost !== undefined) return onLost(data.lost, reject);
    if (data.status === 0) resolve?.(data.bytes);
    else reject?.(new Error(new TextDecoder().decode(data.bytes)));
}

// A worker that failed cannot be used again. If it failed to open its model, it is not restarted
// here.
function onLost(why, reject) {
    reject?.(new Error(t("explorer.stopped", {why})));
    if (parts.ready) begin(parts.model);
}

async function open(model) {
    endWorker();
    parts.ready = false;
    parts.running = new Worker(parts.worker);
    parts.running.onmessage = onAnswer;
    parts.running.onerror = event => {
        event.preventDefault();
        const [first] = parts.asked.values();
        parts.asked.clear();
        onLost(event.message ?? "the worker ended", first?.reject);
    };
    const module = await parts.module;
    for (const file of model.files) file.content = await file.content;
    await call({open: {module, path: model.path, name: model.name, files: model.files}});
    parts.ready = true;
}

// The next request waits for the opened model and reports its failure.
function begin(model) {
    parts.opened = open(model);
    parts.opened.catch(() => {});
    return parts.opened;
}

async function post(place, state, signal) {
    await parts.opened;
    const bytes = await call({place, request: JSON.stringify(state)});
    if (signal?.aborted) throw ended();
    return new Response(place === "save" ? completed(new TextDecoder().decode(bytes)) : bytes);
}

// Here the library writes reports without style and script; this page has both (write_script() of
// html.c).
function completed(report) {
    const partsOf = selector => document.querySelector(selector).textContent.split("/*|*/\n");
    const [style] = partsOf("style"), [strings, , script] = partsOf("body > script:not([type])");
    return report.replace("<style>\n", () => `<style>${style}`)
        .replace('\n"use strict";\n(() => {\n', () => strings + script);
}

// -- another model -------------------------------------------------------------------------------

const MOST_BYTES = 2 ** 31 - 2 ** 20; // of a file: the largest object in the library's memory
// of a training's state, which is read completely for its snapshots
const MOST_TRAINING = 2 ** 26;
const gigabytes = bytes => `${(bytes / 1e9).toFixed(1)} GB`;

function tell(text, progress) {
    byId("explorer-state").hidden = false;
    byId("explorer-text").textContent = text;
    byId("explorer-progress").hidden = progress === undefined;
    if (progress >= 0) byId("explorer-progress").value = progress;
}

function showReading({reading, done, size}) {
    if (!parts.opening) return;
    tell(t("explorer.reading", {file: reading, percent: Math.floor(100 * done / size)}), done / size);
}

// A single GGUF file, or the files of a folder: the name, and the paths that the library requests.
function modelOf(list, folder) {
    const usable = list.filter(({name, size}) => !name.startsWith(".") && !(name === "training.safetensors" && size > MOST_TRAINING));
    const gguf = usable.filter(({name}) => /\.gguf$/i.test(name));
    if (!usable.length) throw new Error(t("explorer.nothing"));
    if (gguf.length > 1) throw new Error(t("explorer.many", {n: gguf.length}));
    const chosen = gguf.length ? gguf : usable, alone = chosen.length === 1;
    const large = chosen.find(file => /\.(gguf|safetensors)$/i.test(file.name) && file.size > MOST_BYTES);
    if (large)
        throw new Error(t("explorer.large",
            {file: large.name, size: gigabytes(large.size), most: gigabytes(MOST_BYTES)}));
    const name = alone ? chosen[0].name : folder || "model";
    return {name, path: name, files: chosen.map(file => ({name: alone ? name : `${name}/${file.name}`, content: file}))};
}

async function openOther(list, folder) {
    if (!list.length) return;
    try {
        const model = modelOf(list, folder);
        tell(t("explorer.opening", {model: model.name}), 0);
        parts.opening = true;
        await begin(model);
        parts.opening = false;
        parts.model = model;
        const page = parse(new TextDecoder().decode(await call({place: "page", request: ""})));
        clearTimeout(rememberTimer);
        const place = new URLSearchParams({text: asked.text});
        if (chosenLanguage) place.set("lang", chosenLanguage);
        history.replaceState(null, "", `#${place}`);
        writeOver(page.querySelector("header.head"), page.title);
    } catch (error) {
        parts.opening = false;
        tell(error.message);
        if (!parts.ready) begin(parts.model);
    }
}

const parse = text => new DOMParser().parseFromString(text, "text/html");

// Rebuild the page with another model or in another language. Everything built before is discarded.
function writeOver(head, title) {
    const page = parse(`<!DOCTYPE html>${parts.page}`);
    page.querySelector("header.head").replaceWith(page.importNode(head, true));
    page.title = title;
    document.open();
    document.write(`<!DOCTYPE html>${page.documentElement.outerHTML}`);
    document.close();
}

const restart = () => writeOver(document.querySelector("header.head"), document.title);

// -- files that are picked or dropped ------------------------------------------------------------

const folderOf = list => list[0]?.webkitRelativePath.split("/")[0];
const topLevel = file => file.webkitRelativePath.split("/").length <= 2;

function listFolder(entry) {
    const reader = entry.createReader(), all = [];
    return new Promise((resolve, reject) => {
        const more = () => reader.readEntries(some => {
            all.push(...some);
            if (some.length) more();
            else resolve(all.filter(one => one.isFile));
        }, reject);
        more();
    });
}

const fileOf = entry => new Promise((resolve, reject) => entry.file(resolve, reject));

async function onDrop(event) {
    event.preventDefault();
    const dropped = [...event.dataTransfer.files];
    const entry = event.dataTransfer.items[0]?.webkitGetAsEntry?.();
    if (!entry?.isDirectory) return openOther(dropped);
    return openOther(await Promise.all((await listFolder(entry)).map(fileOf)), entry.name);
}

function onFilePick(event) {
    const list = [...event.target.files].filter(topLevel);
    event.target.value = "";
    openOther(list, folderOf(list));
}

byId("explorer-file").addEventListener("change", onFilePick);
byId("explorer-folder").addEventListener("change", onFilePick);
addEventListener("dragover", event => event.preventDefault());
addEventListener("drop", onDrop);
if (parts.text) example = parts.text;
if (!parts.opened) begin(parts.model);
startLive();
