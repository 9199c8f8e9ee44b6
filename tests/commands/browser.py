"""A headless Chromium for pages of `mhagen report`; as a program it takes a picture of one:

    python3 tests/commands/browser.py PAGE.html PICTURE.png [--width 1280] [--height 0: the whole page] [--dark]

Needs Debian's chromium-driver and python3-selenium.
"""
import argparse
import base64
import os
import pathlib

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

DRIVER = "/usr/bin/chromedriver"


def start():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--disable-gpu", "--hide-scrollbars", "--lang=en-US",
                     "--force-device-scale-factor=1", *(["--no-sandbox"] if os.getuid() == 0 else [])):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(DRIVER), options=options)


def show(driver, page, width=1280, height=900, dark=False):
    """Opens a file in a window of that size, the colour scheme being what the system prefers."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(pathlib.Path(page).resolve().as_uri())


def picture(driver, path, whole=True):
    """Saves what is to be seen, or the whole page."""
    result = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": whole})
    pathlib.Path(path).write_bytes(base64.b64decode(result["data"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page")
    parser.add_argument("picture")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=0)
    parser.add_argument("--dark", action="store_true")
    args = parser.parse_args()
    driver = start()
    try:
        show(driver, args.page, args.width, args.height or 900, args.dark)
        if not args.height:
            height = driver.execute_script("return document.documentElement.scrollHeight")
            show(driver, args.page, args.width, height, args.dark)
        picture(driver, args.picture, whole=not args.height)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
