"""A headless Chromium driven over its DevTools protocol: what a page logs, fetches, draws and looks like."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-port=0"
)
START_LIMIT_S = 30.0
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("PDBENCH_WORK", ROOT / ".work")) / "axe/node_modules/axe-core/axe.min.js"
ALL_DRAWN = """new Promise(done => (function look() {
    document.querySelector('.plot:not([data-drawn])') ? setTimeout(look, 20) : done(true) })())"""


class Page:
    """One tab. `events` holds what DevTools reported, as (method, params)."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            record = message.json()
            if "id" in record:
                self._answers.pop(record["id"]).set_result(record)
            else:
                self.events.append((record["method"], record.get("params", {})))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        answer = self._answers[self._next] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": self._next, "method": method, "params": params})
        record = await asyncio.wait_for(answer, 60)
        assert "error" not in record, record
        result: dict[str, Any] = record["result"]
        return result

    async def open(self, path: Path, width: int = 1280, *, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        await self.scheme(dark)
        self.events.clear()
        await self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            await asyncio.sleep(0.05)

    async def scheme(self, dark: bool) -> None:
        value = "dark" if dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    async def run(self, script: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    async def click(self, selector: str) -> None:
        """A real click of the mouse in the middle of the first element that matches."""
        middle = await self.run(
            f"""(() => {{ const found = document.querySelector({selector!r}); found.scrollIntoView({{block: "center"}});
            const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=middle[0], y=middle[1], button="left", clickCount=1
            )

    async def picture(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True, fromSurface=True)
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Console errors, uncaught exceptions and refused content, in words."""
        found = []
        for method, params in self.events:
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(str(params["entry"]))
        return found

    def fetched(self, page: Path) -> list[str]:
        """URLs that were asked for, other than the page itself and what is inside it."""
        urls = [params["request"]["url"] for method, params in self.events if method == "Network.requestWillBeSent"]
        return [url for url in urls if url != page.resolve().as_uri() and not url.startswith("data:")]


@asynccontextmanager
async def chromium() -> AsyncIterator[Page]:
    """A fresh browser with an empty profile, gone at the end."""
    assert BINARY is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [BINARY, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = await answer.json()
                tab = next(tab for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    yield page
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    for _ in range(int(START_LIMIT_S / 0.05)):
        assert process.poll() is None, "Chromium ended before it listened"
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.05)
    raise AssertionError("Chromium did not listen in time")
