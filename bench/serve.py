#!/usr/bin/env python3
"""Measure the latency from a key press to new maps: `multihead serve` in headless Chromium.

  bench/serve.py MODEL [--keys N] [--program PATH]

Types N letters at the end of a text of 30 tokens, each after the previous one is drawn. Prints the times from the key
to the frame that shows the maps of all visible heads and the prediction, and the server's part. Needs playwright and a
Chromium ($MHA_CHROMIUM or on the PATH). Report the machine's load: the model uses both of two cores.
"""
import argparse
import os
import shutil
import statistics
import subprocess

from playwright.sync_api import sync_playwright

TEXT = ("The animal did not cross the street because it was too tired and the road was too wide for it to walk "
        "over before the night came ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--keys", type=int, default=12)
    parser.add_argument("--program", default="build/multihead")
    options = parser.parse_args()
    chromium = os.environ.get("MHA_CHROMIUM") or shutil.which("chromium")
    with subprocess.Popen([options.program, "serve", "-q", options.model], stdout=subprocess.PIPE,
                          text=True) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(300_000)
        page.goto(server.stdout.readline().strip() + "#text=" + TEXT.replace(" ", "+"))
        settled = page.locator("#live-panel[data-answers]:not([data-busy])")
        settled.wait_for()
        page.locator("#live-text").press("End")
        served = []
        for i in range(options.keys):
            answers = page.locator("#live-panel").get_attribute("data-answers")
            page.keyboard.type("abcdefghijklmnopqrstuvwxyz"[i % 26])
            page.locator(f"#live-panel:not([data-answers='{answers}'])").wait_for()
            settled.wait_for()
            page.wait_for_timeout(100)
            served.append(int(page.locator("#live-status").inner_text().split("·")[1].split()[0]))
        times = [round(t) for t in page.evaluate(
            "performance.getEntriesByName('live-latency').map(e => e.duration)")]
        print(f"{page.locator('#live-status').inner_text()}; load {os.getloadavg()[0]:.1f}")
        for name, list_ in (("key to drawn maps", times), ("server's part", served)):
            print(f"{name:18} median {statistics.median(list_):.0f} ms, least {min(list_)}, most {max(list_)}: "
                  f"{' '.join(map(str, list_))}")
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
