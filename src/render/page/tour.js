// The guided tour: stations, each with a state of the page, a short text and one question
// (stations.js). The options and the answer of a question are computed from the maps on the page,
// or by requests to the model.

const tour = {at: -1, waits: false, key: "", question: null, text: ""}; // text: of the last answer
const station = () => STATIONS[tour.at];

// -- the state of a station ----------------------------------------------------------------------

function openStation(at) {
    const {text, off, plays, click} = STATIONS[at];
    tour.at = at;
    tour.waits = true;
    tour.key = "";
    asked.text = byId("live-text").value = (plays && answer?.training) || text || TOUR_TEXT;
    asked.off = new Set(off ?? []);
    asked.patched.clear();
    asked.chosenRow = false;
    setClick(click ?? "look");
    markLive();
    drawStation();
    hideQuestion();
    ask("maps");
}

// Select the station's head and cell when the maps have arrived, then show its question.
function followTour() {
    tour.text = asked.text;
    if (tour.at < 0) return;
    drawStation();
    if (tour.waits && station().plays && answer.training && answer.training !== asked.text) return openStation(tour.at);
    if (tour.waits) {
        tour.waits = false;
        placeStation(station());
    }
    const key = `${tour.at} ${asked.text}`;
    if (key !== tour.key) {
        tour.key = key;
        askQuestion(key);
    }
}

function placeStation({view: name, place}) {
    const {head, row, col} = place();
    setView(name);
    choosePanel(head);
    [state.row, state.col, state.side] = [row, col, name === "lines" ? "row" : null];
    setLock(true);
    if (name === "lines") state.lit = new Set([head]);
    drawAll();
}

// A model with other words has no maps of the station's text. The page then returns to the previous
// text.
function keepText() {
    if (!tour.waits || asked.text === tour.text) return false;
    asked.text = byId("live-text").value = tour.text;
    ask("maps");
    return true;
}

// -- the question --------------------------------------------------------------------------------

function hideQuestion() {
    byId("tour").removeAttribute("data-ready");
    byId("tour-question").hidden = true;
    byId("tour-answer").textContent = "";
}

async function askQuestion(key) {
    hideQuestion();
    try {
        const missing = station().needs?.find(need => !TOUR_NEEDS[need]());
        const question = missing ? null : await station().ask();
        if (tour.key !== key) return;
        tour.question = question;
        if (missing) byId("tour-answer").textContent = t(`tour.needs.${missing}`);
        else drawQuestion(question);
        byId("tour").setAttribute("data-ready", "");
    } catch (error) {
        showFailure(error);
    }
}

function drawQuestion({options, values, key = station().name}) {
    byId("tour-question").hidden = false;
    byId("tour-asks").replaceChildren(...tNodes(`tour.${key}.asks`, values));
    byId("tour-options").replaceChildren();
    buildChoices(byId("tour-options"), "tour-option", options.map((text, i) => [String(i), text]), "", answerWith);
}

function answerWith(value) {
    const {options, right, values, shown, key = station().name} = tour.question, good = Number(value) === right;
    byId("tour-answer").classList.toggle("right", good);
    if (shown) placeStation({...station(), place: () => shown});
    byId("tour-answer").replaceChildren(make("b", "", t(good ? "tour.right" : "tour.wrong", {answer: options[right]})),
        " ", ...tNodes(`tour.${key}.answer`, values));
}

// -- drawing -------------------------------------------------------------------------------------

function drawStation() {
    const open = tour.at >= 0;
    byId("tour-open").hidden = open;
    byId("tour-panel").hidden = !open;
    if (!open) return;
    byId("tour-station").value = String(tour.at);
    const {name, plays} = station(), more = plays && t(answer?.training ? "tour.training.text" : "tour.training.none");
    byId("tour-text").textContent = [t(`tour.${name}.text`), more].filter(Boolean).join(" ");
    byId("tour-play").hidden = !plays || !frames.length;
    byId("tour-back").disabled = tour.at === 0;
    byId("tour-on").disabled = tour.at === STATIONS.length - 1;
    byId("tour-link").href = `#station=${name}`;
}

function closeTour() {
    tour.at = -1;
    drawStation();
    byId("tour-open").focus();
    rememberPlace();
}

// Scroll the maps, with their player, to the top, below the part that stays visible.
function bringMaps() {
    const panel = byId("live-panel"), stays = getComputedStyle(panel).position === "sticky";
    const top = byId(byId("player").hidden ? "main" : "player");
    top.style.scrollMarginTop = `${stays ? panel.offsetHeight : 0}px`;
    top.scrollIntoView();
}

function playTraining() {
    bringMaps();
    byId("play").focus({preventScroll: true});
    togglePlay();
}

// A link to a station sets its state. An address that also has a text is a reader's own state at a
// station.
function readStation(place) {
    const at = STATIONS.findIndex(({name}) => name === place.get("station"));
    if (at >= 0 && !place.has("text")) openStation(at);
    else tour.at = at;
    drawStation();
}

function buildTour() {
    tour.text = asked.text || example;
    followers.push(followTour);
    STATIONS.forEach(({name}, i) => byId("tour-station").append(
        new Option(t("tour.title", {n: i + 1, name: t(`tour.${name}`)}), String(i))));
    byId("tour-open").addEventListener("click", () => { openStation(0); byId("tour-station").focus(); });
    byId("tour-maps").addEventListener("click", bringMaps);
    byId("tour-play").addEventListener("click", playTraining);
    byId("tour-close").addEventListener("click", closeTour);
    byId("tour-station").addEventListener("change", event => openStation(Number(event.target.value)));
    byId("tour-back").addEventListener("click", () => openStation(tour.at - 1));
    byId("tour-on").addEventListener("click", () => openStation(tour.at + 1));
}
