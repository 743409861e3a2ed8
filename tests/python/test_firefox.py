"""`multihead page` in headless Firefox, from disk, controlled by Firefox's protocol Marionette:
maps are drawn, a key changes them, and there are no errors and no requests. Needs Firefox and the
requirements of test_explorer.py."""
import base64
import json
import os
import shutil
import signal
import socket
import subprocess

import pytest

from shared import HANGS, needs
from test_explorer import ASK, SECONDS, TEXT, native, write

FIREFOX = os.environ.get("MHA_FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
needs(FIREFOX or "firefox", "is missing: install the package firefox-esr, or set MHA_FIREFOX")


class Firefox:
    def __init__(self, profile):
        profile.mkdir()
        (profile / "user.js").write_text('user_pref("marionette.port", 0);\n')
        self.process = subprocess.Popen(
            [FIREFOX, "--headless", "--no-remote", "--marionette", "--remote-allow-system-access", "--profile",
             profile], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        port = profile / "MarionetteActivePort"
        while not (port.exists() and port.read_text()):
            assert self.process.poll() is None, "Firefox ended before it listened"
        self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=HANGS)
        self.input, self.calls = self.socket.makefile("rb"), 0
        self.receive()
        self.call("WebDriver:NewSession", capabilities={})
        self.call("WebDriver:SetTimeouts", script=1000 * HANGS, pageLoad=1000 * HANGS)

    def receive(self):
        size = b""
        while (byte := self.input.read(1)) != b":":
            size += byte
        return json.loads(self.input.read(int(size)))

    def call(self, name, **arguments):
        self.calls += 1
        message = json.dumps([0, self.calls, name, arguments]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, value = self.receive()
        assert error is None, error
        return value

    def page(self, script, *arguments):
        return self.call("WebDriver:ExecuteAsyncScript", script=script, args=arguments)["value"]

    def browser(self, script):
        """Runs a script with the browser's privileges. Its globals persist."""
        self.call("Marionette:SetContext", value="chrome")
        value = self.call("WebDriver:ExecuteScript", script=script, args=[], sandbox="system", newSandbox=False)
        self.call("Marionette:SetContext", value="content")
        return value["value"]

    def end(self):
        self.socket.close()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def firefox(tmp_path):
    started = Firefox(tmp_path / "profile")
    yield started
    started.end()


# Requests and reported errors of a page.
WATCH = """globalThis.asked = [];
    Services.obs.addObserver({observe(channel) {
        const from = channel.QueryInterface(Ci.nsIHttpChannel).loadInfo.loadingPrincipal;
        if (!from?.isSystemPrincipal) globalThis.asked.push(channel.URI.spec);
    }}, "http-on-opening-request");"""
COMPLAINTS = """return [...globalThis.asked, ...Services.console.getMessageArray().filter(
    one => one instanceof Ci.nsIScriptError && !/^(chrome|resource|moz-extension):/.test(one.sourceName))
    .map(String)];"""
# The page's content after the answer with the given number is drawn.
SHOWN = """const [count, done] = arguments, look = () => {
    const panel = document.getElementById("live-panel");
    if (!(Number(panel?.dataset.answers) > count) || panel.hasAttribute("data-busy")) return setTimeout(look, 1);
    done({answers: Number(panel.dataset.answers), maps: document.querySelectorAll(".thumb").length,
        tokens: [...document.querySelectorAll("#strip .chip bdi")].map(token => token.innerText),
        status: document.getElementById("live-status").innerText,
        readout: document.getElementById("readout").innerText});
};
look();"""


def test_it_works_in_firefox(firefox, trained, tmp_path):
    page = write(trained, tmp_path / "explorer.html", "the animal was")
    firefox.browser(WATCH)
    firefox.call("WebDriver:Navigate", url=page.as_uri())
    first = firefox.page(SHOWN, 0)
    assert first["maps"] == 8 and first["tokens"][-3:] == ["the", "animal", "was"]
    text = firefox.call("WebDriver:FindElement", using="css selector", value="#live-text")["value"]
    firefox.call("WebDriver:ElementSendKeys", id=next(iter(text.values())), text=" t")
    unknown = firefox.page(SHOWN, first["answers"])
    assert "'t' is not one of" in unknown["status"]
    firefox.call("WebDriver:ElementSendKeys", id=next(iter(text.values())), text="oo")
    after = firefox.page(SHOWN, unknown["answers"])
    assert after["maps"] == 8 and after["tokens"][-1] == "too" and after["status"].startswith("5 tokens")

    # The numbers equal those of the portable kernels.
    requests = [("look", json.dumps({"text": TEXT, "off": ["L0H1"], "head": "L1H2"}))]
    (status, answer), = firefox.page(
        f"const done = arguments[1]; ({ASK})(arguments[0]).then(done, e => done(String(e)))", requests)
    (own_status, own), = native(trained, requests)
    assert (status, SECONDS.sub(b"", base64.b64decode(answer))) == (own_status, SECONDS.sub(b"", own))
    assert firefox.browser(COMPLAINTS) == []
