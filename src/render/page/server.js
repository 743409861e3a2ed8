
// The live page's backend: requests to the program that serves it.

const MOST_BYTES = 1 << 20; // per request: the server closes on longer ones

async function post(place, state, signal) {
    const body = JSON.stringify(state);
    if (new Blob([body]).size > MOST_BYTES) throw new Error(t("server.long"));
    const reply = await fetch(place, {method: "POST", body, signal,
        headers: {"Content-Type": "application/json"}}).catch(error => {
        if (error.name === "AbortError") throw error;
        throw new Error(t("server.silent"));
    });
    if (!reply.ok) throw new Error((await reply.json()).error);
    return reply;
}

const restart = () => location.reload();

async function quit() {
    try {
        await post("quit", {});
        showStatus(t("server.ended"), false);
        for (const name of ["text", "other", "source", "quit"]) byId(`live-${name}`).disabled = true;
    } catch (error) {
        showFailure(error);
    }
}

document.body.append(byId("live-end")); // below all maps, where it is not pressed by accident
byId("live-quit").addEventListener("click", quit);
startLive();
