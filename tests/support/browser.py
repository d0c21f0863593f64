# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through a pipe by the DevTools protocol: pages opened, scripts evaluated, pictures taken.
It keeps what the console complains about, and every address that a page asked for."""
import base64, json, os, pathlib, select, shutil, signal, subprocess, tempfile, time

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--hide-scrollbars"
]


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:

    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **params):
        return self.browser.call(method, params, self.session)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def run(self, script):
        """The value of an expression; a promise is waited for."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in told:
            raise AssertionError(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait(self, script, what=None, seconds=60):
        """Until the expression is true: conditions are waited for, never seconds. One that fails is not true yet."""
        until = time.monotonic() + seconds
        while not self.run(f"(() => {{ try {{ return !!({script}); }} catch (e) {{ return false; }} }})()"):
            if time.monotonic() > until:
                raise AssertionError(
                    f"{what or script}: not within {seconds} s; the page: {self.run('document.body.innerText')[:3000]}")
            time.sleep(0.05)

    def shot(self, path, width=1280, height=900, dark=False):
        self.call("Page.bringToFront")  # a page behind another is never drawn
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{
                      "name": "prefers-color-scheme",
                      "value": "dark" if dark else "light"
                  }])
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


class Browser:

    def __init__(self, program):
        self.home = tempfile.mkdtemp(prefix="fsdpck-browser-")
        to_read, self.to = os.pipe()
        self.frm, from_write = os.pipe()

        def pipes():
            a, b = os.dup(to_read), os.dup(from_write)  # 3 and 4 may be among them
            os.dup2(a, 3)
            os.dup2(b, 4)

        env = dict(os.environ, HOME=self.home, XDG_CONFIG_HOME=self.home, XDG_CACHE_HOME=self.home)
        self.process = subprocess.Popen([program, *FLAGS, f"--user-data-dir={self.home}/data", "about:blank"],
                                        env=env,
                                        close_fds=False,
                                        preexec_fn=pipes,
                                        start_new_session=True,
                                        stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.rest, self.number, self.complaints, self.addresses = b"", 0, [], []

    def note(self, message):
        kind, p = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(str(p["exceptionDetails"].get("exception", p["exceptionDetails"])))
        elif kind == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning"):
            self.complaints.append(str(p["args"]))
        elif kind == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.complaints.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        elif kind == "Network.requestWillBeSent":
            self.addresses.append(p["request"]["url"])

    def next_message(self, until):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.frm], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.frm, 1 << 20) if ready else b""
            if not piece:
                raise AssertionError("the browser does not answer")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, params=None, session=None):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        until = time.monotonic() + 120
        while True:
            told = self.next_message(until)
            if told.get("id") != self.number:
                self.note(told)
            elif "error" in told:
                raise AssertionError(f"{method}: {told['error']}")
            else:
                return told["result"]

    def page(self, downloads=None, tab=False):
        """In a window of its own, which is seen; or in a tab, of which a window shows one."""
        target = self.call("Target.createTarget", {"url": "about:blank", "newWindow": not tab})["targetId"]
        page = self.attach(target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(domain + ".enable")
        if downloads:
            self.call("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
        return page

    def attach(self, target):
        return Page(self, self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])

    def opened(self, part):
        """The page that another one has opened, whose address has this part; None: not yet."""
        for info in self.call("Target.getTargets")["targetInfos"]:
            if info["type"] == "page" and part in info["url"]:
                return self.attach(info["targetId"])
        return None

    def close(self):
        os.close(self.to)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.frm)
        shutil.rmtree(self.home, ignore_errors=True)
