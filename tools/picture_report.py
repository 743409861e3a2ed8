#!/usr/bin/env python3
"""Take a picture of a report for documents: tools/picture_report.py REPORT.html PICTURE.png

Opens the report in headless Chromium ($MHA_CHROMIUM, or chromium on the PATH) and locks the initial cell. Needs
playwright from PyPI, not its browsers. The pictures in docs/ are made by

    multihead train sentences -o demo
    multihead view all-MiniLM-L6-v2 --example animal -o view.html
    tools/picture_report.py demo/report.html docs/report.png --address "head=L1H0&cell=14,2&locked=row"
    tools/picture_report.py demo/report.html docs/report-dark.png --dark --snapshot 6 --address (as before)
    tools/picture_report.py view.html docs/report-view.png --head L1H8 --width 1240 --height 1040
    tools/picture_report.py view.html docs/report-lines.png --width 1240 --height 1040 \\
        --address "view=lines&head=L5H11&heads=L5H3,L5H10,L5H11&cell=10,2&locked=row"
"""
import argparse
import os
import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

# Move the playback with the page's own control.
TO_SNAPSHOT = """at => {
    const slider = document.getElementById("frame");
    slider.value = at;
    slider.dispatchEvent(new Event("input"));
}"""


def take(page, options):
    page.goto(f"{options.report.resolve().as_uri()}#{options.address}")
    page.wait_for_function("performance.getEntriesByName('report-complete').length > 0")
    if options.snapshot is not None:
        page.evaluate(TO_SNAPSHOT, options.snapshot)
    if options.head:
        page.locator(f".thumb[title^='{options.head}']").first.click()
    if not options.address:
        page.focus("#cell")
        page.keyboard.press("Enter")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(1, 1)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=str(options.picture))
    print(f"{options.picture}: {options.picture.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--head", help="shown large: L1H8")
    parser.add_argument("--address", default="", help="the state to show, as in the page's address")
    parser.add_argument("--snapshot", type=int, help="snapshot of a training, counted from 0")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=1080)
    options = parser.parse_args()
    chromium = os.environ.get("MHA_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.exit("no Chromium: install the package chromium, or set MHA_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        size = {"width": options.width, "height": options.height}
        page = browser.new_page(viewport=size, color_scheme="dark" if options.dark else "light")
        take(page, options)
        browser.close()


if __name__ == "__main__":
    main()
