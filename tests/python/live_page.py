"""The page of `multihead serve`, for tests that open it. Needs a program with serve."""
import base64
import subprocess

import pytest

from shared import PROGRAM

if "without serve" in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True,
                                     check=True).stdout:
    pytest.skip("this program was built without serve", allow_module_level=True)


def settled(page):
    """Wait until all requests are answered and drawn."""
    page.locator("#live-panel[data-answers]:not([data-busy])").wait_for()


def post(page, place, body):
    """The bytes that the server answers."""
    reply = page.evaluate("""async ([place, body]) => {
        const reply = await fetch(place, {method: "POST", body: JSON.stringify(body),
            headers: {"Content-Type": "application/json"}});
        return btoa(Array.from(new Uint8Array(await reply.arrayBuffer()), byte => String.fromCharCode(byte)).join(""));
    }""", [place, body])
    return base64.b64decode(reply)
