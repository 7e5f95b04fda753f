#!/usr/bin/env python3
"""Looks at the page of `leasehold serve` in Chromium, by plain WebDriver requests; the standard library is enough.

  look.py CHROMEDRIVER                          reads requests, a line of JSON each, and answers each with a line of JSON:
                                                ["open", "http://127.0.0.1:9123/#token=…"]  →  {"ok": null}  or  {"error": "…"}
  look.py CHROMEDRIVER URL [DIRECTORY]          checks all that must hold of any page, at both sizes, light and dark; pictures into DIRECTORY

A request is the name of a method of `Page`, and what it takes.
"""
import base64, http.client, json, pathlib, socket, subprocess, sys, time

SIZES = {"phone": (390, 844), "desk": (1440, 900)}

# All texts, each with its own colour and the first background behind it that is not clear: those whose contrast is too low.
CONTRAST = """
const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor); if (c[3] === 1) return c; }
  return [255, 255, 255, 1];
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), low = [];
let least = 99, seen = 0;
const look = (node, text, colour) => {
  const [one, other] = [light(parse(colour)), light(behind(node))];
  const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
  seen += 1; least = Math.min(least, ratio);
  if (ratio < 4.5) low.push([text.trim().slice(0, 40), node.id || node.className, ratio.toFixed(2)]);
};
while (texts.nextNode()) {
  const node = texts.currentNode.parentElement;
  if (texts.currentNode.data.trim() && node.checkVisibility({ visibilityProperty: true })) look(node, texts.currentNode.data, getComputedStyle(node).color);
}
for (const node of document.querySelectorAll("input[placeholder]")) if (node.checkVisibility()) look(node, node.placeholder, getComputedStyle(node, "::placeholder").color);
return { least: Number(least.toFixed(2)), seen, low: low.slice(0, 20) };
"""

# Each control that is seen, as a word.
CONTROLS = """
const name = (node) => node.id || node.dataset.sort || (node.closest("tr") ? "row " + node.textContent.slice(0, 30) : node.textContent.trim());
const modal = document.querySelector("dialog:modal");
"""
ALL_CONTROLS = CONTROLS + """
return [...(modal ?? document).querySelectorAll("a[href], button, input, select, textarea")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled).map(name);
"""
FOCUSED = CONTROLS + """
const node = document.activeElement;
if (!node || node === document.body) return null;
const style = getComputedStyle(node);
return [name(node), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
"""

ROWS = """
return [...document.querySelectorAll("#rows tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
"""

OVERFLOW = """
const seen = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility() && node.clientWidth > 1);
const is = (node) => node.getBoundingClientRect().right > innerWidth + 1 || (node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX === "visible" && node.matches("td, li, dd, p, section, form"));
return seen.filter((node) => !node.closest(".unseen, thead") && is(node)).map((node) => `${node.id || node.className || node.localName}: ${node.textContent.slice(0, 40)}`).slice(0, 10);
"""

# When a text is there, as the page itself sees it: without the time of a request.
AWAIT = """
const [selector, text, isWanted, within, done] = arguments;
const began = performance.now();
const look = () => {
  const is = [...document.querySelectorAll(selector)].some((node) => node.checkVisibility({ visibilityProperty: true }) && node.textContent.includes(text));
  if (is === isWanted) return done(Math.round(performance.now() - began));
  if (performance.now() - began > within) return done(null);
  setTimeout(look, 20);
};
look();
"""

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Down": "\ue015", "Up": "\ue013"}


class Page:
    def __init__(self, chromedriver):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen([chromedriver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wire = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.session = None
        self.asked = []
        try:
            self.begin()
        except BaseException:
            self.driver.kill()
            raise

    def begin(self):
        until = time.monotonic() + 20
        while True:
            try:
                if self.call("GET", "/status")["ready"]:
                    break
            except OSError:
                self.wire.close()
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking", "--no-first-run"],
        }
        wants = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"}, "unhandledPromptBehavior": "ignore"}
        began = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wants}})
        self.session = "/session/" + began["sessionId"]
        self.size("desk")
        self.scheme("light")

    def call(self, method, path, body=None):
        self.wire.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        answer = json.loads(self.wire.getresponse().read())["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message'].splitlines()[0]}")
        return answer

    def post(self, path, body):
        return self.call("POST", self.session + path, body)

    def chrome(self, command, **params):
        return self.post("/goog/cdp/execute", {"cmd": command, "params": params})

    def script(self, script, *args):
        """The value that a script returns."""
        return self.post("/execute/sync", {"script": script, "args": list(args)})

    def end(self):
        try:
            if self.session:
                self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()

    # The hands of a viewer

    def size(self, name):
        """Headless Chromium is never narrower than 500 pixels, so the phone is emulated."""
        self.width, height = SIZES[name]
        self.chrome("Emulation.setDeviceMetricsOverride", width=self.width, height=height, deviceScaleFactor=2 if name == "phone" else 1, mobile=name == "phone")

    def scheme(self, name):
        self.chrome("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url):
        # A change of the fragment alone would load nothing.
        self.post("/url", {"url": "about:blank"})
        self.post("/url", {"url": url})
        inner = self.script("return innerWidth")
        assert inner == self.width, f"the window is {inner} wide, not {self.width}"

    def back(self):
        self.post("/back", {})

    def reload(self):
        self.post("/refresh", {})

    def element(self, selector):
        return next(iter(self.post("/element", {"using": "css selector", "value": selector}).values()))

    def click(self, selector):
        self.post(f"/element/{self.element(selector)}/click", {})

    def type(self, selector, text):
        """In place of what is there."""
        self.script("arguments[0].value = ''; arguments[0].dispatchEvent(new InputEvent('input', { bubbles: true }))", {"element-6066-11e4-a52e-4f735466cecf": self.element(selector)})
        if text:
            self.post(f"/element/{self.element(selector)}/value", {"text": text})

    def key(self, name):
        value = KEYS.get(name, name)
        steps = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.post("/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def choose(self, selector, value):
        """An entry of a list, or a box: "on", "off"."""
        self.script("const node = document.querySelector(arguments[0]), to = arguments[1];"
                    "if (node.type === 'checkbox') node.checked = to === 'on'; else node.value = to;"
                    "node.dispatchEvent(new Event('change', { bubbles: true }))", selector, value)

    def lock(self, name):
        """Opens the panel of the lock by its row."""
        self.script("const row = [...document.querySelectorAll('#rows tr')].find((row) => row.lock.lock === arguments[0]);"
                    "if (!row) throw new Error('no row of ' + arguments[0]); row.querySelector('a').click()", name)

    # The eyes of a viewer

    def rows(self):
        """The cells of each row: name, kind, holder, held for, lease left, waiting."""
        return self.script(ROWS)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.innerText ?? null", selector)

    def wait(self, selector, text, wanted=True, within_ms=5000):
        """After how many milliseconds an element that is seen has the text; null if not within that time."""
        self.post("/timeouts", {"script": within_ms + 10000})
        return self.post("/execute/async", {"script": AWAIT, "args": [selector, text, wanted, within_ms]})

    def contrast(self):
        return self.script(CONTRAST)

    def tabs(self, most=400):
        """The controls that Tab does not reach, and those whose focus is not seen."""
        wanted = self.script(ALL_CONTROLS)
        self.script("document.activeElement?.blur()")
        reached, unseen = [], []
        for _ in range(min(most, len(wanted) + 5)):
            self.key("Tab")
            now = self.script(FOCUSED)
            if now is None:
                continue
            reached.append(now[0])
            if not now[1]:
                unseen.append(now[0])
        return {"reached": len(set(reached)), "missed": [name for name in wanted if name not in reached], "unseen": unseen, "order": reached[:30]}

    def overflow(self):
        """Elements that are wider than the window, or than the table or the box that they are in."""
        return self.script(OVERFLOW)

    def requests(self):
        """All addresses that Chromium has asked for since the beginning."""
        for entry in self.post("/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])
        return sorted(set(self.asked))

    def console(self):
        """The complaints of the browser since the last time: also all that the page's policy has refused."""
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"})]

    def alert(self):
        """The text of a dialog that a script has opened: of an injected one, since the page opens none."""
        try:
            return self.call("GET", self.session + "/alert/text")
        except RuntimeError:
            return None

    def picture(self, file):
        pathlib.Path(file).write_bytes(base64.b64decode(self.call("GET", self.session + "/screenshot")))


def check(page, url, directory):
    """All that must hold of any page: what is wrong."""
    wrong = []
    host = "/".join(url.split("/")[:3])
    for size in SIZES:
        page.size(size)
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            page.open(url)
            if page.wait("#live", "live") is None:
                wrong.append(f"{size}, {scheme}: not live within 5 s: {page.text('#live')}")
            for place in ("list", "lock"):
                if place == "lock":
                    if not page.rows():
                        continue
                    page.script("document.querySelector('#rows a').click()")
                    page.wait("#p-body h3", "Holder")
                if directory:
                    page.picture(f"{directory}/{size}-{scheme}-{place}.png")
                contrast, tabs, wide = page.contrast(), page.tabs(), page.overflow()
                print(f"{size}, {scheme}, {place}: contrast {contrast['least']} or more in {contrast['seen']} texts, {tabs['reached']} controls by Tab")
                found = {"contrast": contrast["low"], "not by Tab": tabs["missed"], "focus not seen": tabs["unseen"], "too wide": wide}
                wrong += [f"{size}, {scheme}, {place}: {what}: {where}" for what, where in found.items() if where]
    wrong += [f"asked another host: {asked}" for asked in page.requests() if not asked.startswith((host, "data:", "about:", "blob:"))]
    wrong += [f"the browser says: {said}" for said in page.console()]
    wrong += [f"a script ran: {said}" for said in [page.alert()] if said]
    return wrong


def serve(page):
    for line in sys.stdin:
        try:
            name, *args = json.loads(line)
            if name.startswith("_"):
                raise RuntimeError(f"no request {name}")
            answer = {"ok": getattr(page, name)(*args)}
        except Exception as error:  # the test that asked decides
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def main():
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    page = Page(sys.argv[1])
    try:
        if len(sys.argv) == 2:
            return serve(page)
        wrong = check(page, sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
        print("\n".join(wrong) or "nothing is wrong")
        return 1 if wrong else 0
    finally:
        page.end()


if __name__ == "__main__":
    sys.exit(main())
