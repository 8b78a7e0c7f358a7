"""Chromium without a window, driven through its debugging pipe: real clicks and keys, without a further package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe", "--window-size=1280,900",
)  # fmt: skip
KEYS = {"ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "PageDown": 34}


def find_browser() -> str | None:
    """Path of Chromium: that of HWH_CHROMIUM, or the first of its usual names; None where there is none."""
    return os.environ.get("HWH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser that this object starts and ends."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="hwh-chromium-")
        to_browser, from_us = os.pipe()
        to_us, from_browser = os.pipe()
        # Chromium reads commands from file descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in = os.fdopen(from_us, "wb", buffering=0), os.fdopen(to_us, "rb")
        self._number, self._session = 0, None
        self.events: list[dict[str, Any]] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._out.close()
        self._process.terminate()
        self._process.wait(timeout=30)
        self._in.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _message(self) -> dict[str, Any]:
        parts = bytearray()
        while (byte := self._in.read(1)) not in (b"\0", b""):
            parts += byte
        if not parts:
            raise RuntimeError(f"the browser ended (exit code {self._process.poll()})")
        return json.loads(parts)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run one command of the DevTools protocol; raises RuntimeError with the browser's own words."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        self._out.write(json.dumps(request).encode() + b"\0")
        while (message := self._message()).get("id") != self._number:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a local file and wait until it is loaded; ``events`` begins anew."""
        # The same file with another fragment would not be loaded again.
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri() + fragment)
        while self.evaluate("location.protocol + document.readyState") != "file:complete":
            self.settle()

    def evaluate(self, expression: str) -> Any:
        """Value of an expression (a promise is waited for); raises RuntimeError for an exception on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", str(found)))
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until what was asked for is drawn and events were handled."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 20)))")

    def press(self, key: str) -> None:
        """One key for what has the focus."""
        code = KEYS.get(key, 9 if key == "Tab" else 32 if key == " " else 0)
        more = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, selector: str, x: float, y: float) -> None:
        """A click at a place of an element, in pixels from its upper left corner; it is scrolled to if need be."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{found}.scrollIntoView()")
        self.settle()
        left, top = self.evaluate(f"(box => [box.x, box.y])({found}.getBoundingClientRect())")
        x, y = x + left, y + top
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def resize(self, width: int, height: int) -> None:
        """Another size of the window, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def problems(self) -> list[str]:
        """Exceptions, warnings and errors of the console, and requests beyond the page itself, since it was opened."""
        found = []
        for message in self.events:
            method, about = message.get("method"), message.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif method == "Log.entryAdded":
                found.append(about["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
                found.append(str(about["args"]))
            elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(("file:", "about:")):
                found.append(f"request of {about['request']['url']}")
        return found
