// Playback of a training: the maps at each frame, and finally the figure itself.

const WHOLE_MS = 6000, LEAST_MS = 80, MOST_MS = 500; // a playback; between two frames
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
let playing = 0; // the timer, or 0

const frameLabel = () => state.frame < 0 ? t("player.now")
    : labelOf(frames[state.frame]);
const labelOf = ({label, at}) => label ? given(label) : String(at);

function buildPlayer() {
    const slider = byId("frame");
    slider.addEventListener("input", () => {
        const at = Number(slider.value); // stop() restores the player
        stop();
        setFrame(at);
    });
    byId("play").addEventListener("click", togglePlay);
    showPlayer();
}

// Show the player if the new data has frames.
function showPlayer() {
    byId("player").hidden = !frames.length || !panels.length;
    if (byId("player").hidden) return;
    byId("frame").max = frames.length;
    drawPlayer();
}

// Show the number of snapshots and, at a snapshot, the values of the charts.
function aboutFrames() {
    const last = labelOf(frames.at(-1));
    const all = data.frame_step > 1
        ? t("player.kept", {n: frames.length, all: data.frame_count, last})
        : t("player.count", {n: frames.length, last});
    if (state.frame < 0) return all;
    const at = frames[state.frame].at;
    const lines = data.curves.filter(curve => curve.timeline).flatMap(curve => curve.series);
    const known = lines.filter(s => (s.y[s.x.indexOf(at)] ?? null) !== null);
    return known.length ? known.map(s => `${s.name} ${valueText(s, at)}`).join(" · ") : all;
}

// at: 0 .. frames.length; the last is the figure itself.
function setFrame(at) {
    const place = Math.min(Math.max(at, 0), frames.length);
    state.frame = place === frames.length ? -1 : place;
    scales.clear();
    drawPlayer();
    drawOverview();
    drawFocus();
    drawTimelines();
}

function drawPlayer() {
    const at = state.frame < 0 ? frames.length : state.frame;
    byId("frame").value = at;
    byId("frame").setAttribute("aria-valuetext", frameLabel());
    byId("frame-label").textContent = frameLabel();
    byId("player-about").textContent = aboutFrames();
    byId("player").classList.toggle("playing", playing !== 0);
    byId("play").setAttribute("aria-label", t(playing ? "player.stop" : "player.play"));
    byId("play").title = t(playing ? "player.stop.title" : "player.play.title");
}

function stop() {
    clearInterval(playing);
    playing = 0;
    if (frames.length) drawPlayer();
}

// With reduced motion there is no animation: the button advances one frame.
function togglePlay() {
    if (!frames.length) return;
    if (playing) {
        stop();
        return;
    }
    if (reducedMotion.matches) {
        setFrame(state.frame < 0 ? 0 : state.frame + 1);
        say(frameLabel());
        return;
    }
    if (state.frame < 0) setFrame(0);
    const each = Math.min(Math.max(WHOLE_MS / frames.length, LEAST_MS), MOST_MS);
    playing = setInterval(() => {
        setFrame(state.frame + 1);
        if (state.frame < 0) stop();
    }, each);
    drawPlayer();
}

function stepFrame(by) {
    if (!frames.length) return;
    stop();
    setFrame((state.frame < 0 ? frames.length : state.frame) + by);
    say(frameLabel());
}

// The note under the map while a frame is shown.
const frameNote = () => state.frame < 0 ? ""
    : t("note.frame", {frame: frameLabel()});
