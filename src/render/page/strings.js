// Texts by name, in the reader's language: strings/en.js, and a file for each translation.

// The language that the address names (the switch of a live page), or the first of the browser's
// languages that exists.
const language = [new URLSearchParams(location.hash.slice(1)).get("lang"), ...navigator.languages]
    .map(tag => tag?.toLowerCase().split("-")[0]).find(tag => Object.hasOwn(texts, tag)) ?? "en";

const PLURALS = ["zero", "one", "two", "few", "many", "other"];
const plurals = new Intl.PluralRules(language);

// "{n|map|maps}": the form for n. Forms are in the order of PLURALS, as far as the language has
// them.
function formOf(n, forms) {
    const {pluralCategories} = plurals.resolvedOptions();
    return forms[PLURALS.filter(kind => pluralCategories.includes(kind)).indexOf(plurals.select(n))];
}

// A text in pieces, because values can be nodes, or functions that create a node for each place.
// {name} is a value; {name|one|other} is a form for a number.
function tNodes(key, values = {}) {
    const text = texts[language][key] ?? texts.en[key];
    return text.split(/\{([^{}]*)\}/).map((part, i) => {
        if (i % 2 === 0) return part;
        const [name, ...forms] = part.split("|");
        const value = values[name];
        return forms.length ? formOf(value, forms) : typeof value === "function" ? value() : value;
    }).filter(part => part !== "");
}

const t = (key, values) => tNodes(key, values).join("");

// Translate words that are in the data: "query (attending)", "layer 3".
function given(text) {
    const [n] = /\d+/.exec(text) ?? [], key = `given.${text.replace(n, "{n}")}`;
    return key in texts.en ? t(key, {n}) : text;
}

// Fill in the texts of the page's own elements. data-t names the content, around children that have
// a data-slot; data-t-label, data-t-title and data-t-hint name attributes.
function fillTexts(root) {
    for (const node of root.querySelectorAll("[data-t]")) {
        const slots = [...node.children].filter(child => child.dataset.slot);
        node.replaceChildren(...tNodes(node.dataset.t,
            Object.fromEntries(slots.map(child => [child.dataset.slot, child]))));
    }
    for (const [name, attribute] of [["label", "aria-label"], ["title", "title"], ["hint", "placeholder"]])
        for (const node of root.querySelectorAll(`[data-t-${name}]`))
            node.setAttribute(attribute, t(node.getAttribute(`data-t-${name}`)));
}

document.documentElement.lang = language;
fillTexts(document);
