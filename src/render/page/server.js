
// The live page's carrier to the program that serves it.

const MOST_BYTES = 1 << 20; // of a request: the server closes on longer ones

async function post(place, state, signal) {
    const body = JSON.stringify(state);
    if (new Blob([body]).size > MOST_BYTES) throw new Error("The text is longer than 1 MiB; shorten it.");
    const reply = await fetch(place, {method: "POST", body, signal,
        headers: {"Content-Type": "application/json"}}).catch(error => {
        if (error.name === "AbortError") throw error;
        throw new Error("The server does not answer: it was ended.");
    });
    if (!reply.ok) throw new Error((await reply.json()).error);
    return reply;
}

async function quit() {
    try {
        await post("quit", {});
        showStatus("The server has ended. This page can be closed.", false);
        byId("live-text").disabled = byId("live-other").disabled = byId("live-quit").disabled = true;
    } catch (error) {
        showFailure(error);
    }
}

document.body.append(byId("live-end")); // below all maps, where nobody presses it on the way
byId("live-quit").addEventListener("click", quit);
startLive();
