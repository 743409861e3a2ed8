// The library in a worker: WebAssembly over the user's files, called by explorer.js. A worker holds one model.
// The page replaces the worker to open another model, and after a failure.
"use strict";

let wasm = null, files = [], told = 0;
const TELL_MS = 100;
const memory = (at, bytes) => new Uint8Array(wasm.memory.buffer, at >>> 0, bytes);

function textAt(at) {
    const all = new Uint8Array(wasm.memory.buffer, at >>> 0);
    return new TextDecoder().decode(all.slice(0, all.indexOf(0)));
}

// -- functions for the library --------------------------------------------------------------------

const NONE = -1, FOLDER = -2; // files.c

function find(path) {
    const name = textAt(path), found = files.findIndex(file => file.name === name);
    return found >= 0 ? found : files.some(file => file.name.startsWith(`${name}/`)) ? FOLDER : NONE;
}

const sizeOf = content => content.size ?? content.length;

// Bytes of the page, or a slice of a file on the user's disk.
function slice(content, from, to) {
    if (!(content instanceof Blob)) return content.subarray(from, to);
    return new Uint8Array(new FileReaderSync().readAsArrayBuffer(content.slice(from, to)));
}

function read(i, from, to, bytes) {
    try {
        const part = slice(files[i].content, from, from + bytes);
        memory(to, part.length).set(part);
        tellProgress(files[i], from + part.length);
        return part.length;
    } catch {
        return -1; // the file changed or is no longer readable
    }
}

function tellProgress(file, done) {
    const now = performance.now();
    if (now < told + TELL_MS) return;
    told = now;
    postMessage({reading: file.name, done, size: sizeOf(file.content)});
}

const UNSUPPORTED = 52; // ENOSYS: no other files, no writing
const imports = {
    files: {find, size: i => sizeOf(files[i].content), read},
    wasi_snapshot_preview1: {
        clock_time_get(clock, ...rest) {
            const now = BigInt(Math.round(performance.now() * 1e6));
            new DataView(wasm.memory.buffer).setBigUint64(rest.at(-1) >>> 0, now, true);
            return 0;
        },
        environ_sizes_get(count, bytes) {
            for (const at of [count, bytes]) memory(at, 4).fill(0);
            return 0;
        },
        environ_get: () => 0,
        proc_exit() { throw new Error("the library ended"); }
    },
    env: {emscripten_notify_memory_growth() {}}
};

// -- functions for the page -----------------------------------------------------------------------

async function start(module) {
    const compiled = await WebAssembly.compile(module), given = {};
    for (const {module: from, name} of WebAssembly.Module.imports(compiled)) {
        given[from] ??= {};
        given[from][name] = imports[from]?.[name] ?? (() => UNSUPPORTED);
    }
    wasm = (await WebAssembly.instantiate(compiled, given)).exports;
    wasm._initialize?.();
}

// Call a function with texts, which are copied to the library's memory during the call.
function callWith(texts, call) {
    const lent = texts.map(text => {
        const bytes = new TextEncoder().encode(text), at = wasm.take(bytes.length + 1);
        if (!at) throw new Error("no memory");
        memory(at, bytes.length).set(bytes);
        memory(at + bytes.length, 1)[0] = 0;
        return {at, length: bytes.length};
    });
    const status = call(...lent);
    for (const {at} of lent) wasm.give(at);
    return status;
}

async function answer({open, place, request}) {
    if (open) {
        files = open.files;
        await start(open.module);
        return callWith([open.path, open.name], (path, name) => wasm.open(path.at, name.at));
    }
    return callWith([place, request], (where, body) => wasm.answer(where.at, body.at, body.length));
}

onmessage = async ({data}) => {
    try {
        const status = await answer(data);
        const bytes = memory(wasm.answer_data(), wasm.answer_bytes()).slice();
        postMessage({id: data.id, status, bytes}, [bytes.buffer]);
    } catch (error) {
        postMessage({id: data.id, lost: String(error?.message ?? error)});
    }
};
