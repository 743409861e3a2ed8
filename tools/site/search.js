/* The search of the site. A section matches if every word of the query is the prefix of one of its
 * words. The index is a script, because pages opened from disk cannot fetch files. It is loaded
 * when the field gets the focus. */
"use strict";
(() => {
    const root = document.currentScript.dataset.root;
    const box = document.querySelector("search");
    const input = Object.assign(document.createElement("input"), {type: "search", placeholder: "Search"});
    input.setAttribute("aria-label", "Search all pages");
    const list = document.createElement("ol");
    box.append(input, list);

    const words = text => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
    /* 0: a word is missing. Words in the section's name count most, then words in the page's name. */
    function score(section, wanted) {
        let sum = 0;
        for (const word of wanted) {
            if (words(section.name).some(w => w.startsWith(word))) sum += words(section.name).includes(word) ? 9 : 6;
            else if (words(section.page).some(w => w.startsWith(word))) sum += 3;
            else if (` ${section.text} `.includes(` ${word} `)) sum += 2;
            else if (` ${section.text}`.includes(` ${word}`)) sum += 1;
            else return 0;
        }
        return sum;
    }
    function show() {
        const wanted = words(input.value);
        list.replaceChildren();
        if (!wanted.length || !window.siteIndex) return;
        const found = window.siteIndex.map(section => [score(section, wanted), section]).filter(pair => pair[0]);
        found.sort((a, b) => b[0] - a[0]);
        for (const [, section] of found.slice(0, 20)) {
            const link = Object.assign(document.createElement("a"), {href: root + section.url, textContent: section.name});
            const page = Object.assign(document.createElement("small"), {textContent: ` ${section.page}`});
            const item = document.createElement("li");
            item.append(link, page);
            list.append(item);
        }
        if (!found.length) list.append(Object.assign(document.createElement("li"), {textContent: "Nothing found."}));
    }
    function load() {
        const script = Object.assign(document.createElement("script"), {src: `${root}search-index.js`});
        script.addEventListener("load", show);
        document.head.append(script);
    }
    input.addEventListener("focus", load, {once: true});
    input.addEventListener("input", show);
    input.addEventListener("keydown", event => {
        if (event.key === "Escape") list.replaceChildren();
        if (event.key === "Enter") list.querySelector("a")?.click();
    });
    list.addEventListener("click", () => list.replaceChildren());
})();
