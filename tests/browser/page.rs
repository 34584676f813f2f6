//! A page in headless Chromium.

use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::devtools::Devtools;

/// A browser with a profile of its own.
pub struct Browser {
    devtools: Mutex<Devtools>,
    dir: TempDir,
}

/// A page, and the browser that shows it.
pub struct Page<'a> {
    browser: &'a Browser,
    session: String,
    url: String,
    may_err: bool,
}

/// Values of the media feature `prefers-color-scheme`.
#[derive(Clone, Copy)]
pub enum Scheme {
    /// The value `light`.
    Light,
    /// The value `dark`.
    Dark,
}

impl Browser {
    /// Starts Chromium with an empty profile.
    pub fn start() -> Self {
        let program = std::env::var_os("ZPROBE_TEST_CHROMIUM").map_or_else(
            || which::which("chromium").expect("chromium is on PATH (apt-get install chromium)"),
            PathBuf::from,
        );
        let dir = TempDir::new().unwrap();
        let devtools = Devtools::start(&program, &dir.path().join("profile"));
        Self { devtools: Mutex::new(devtools), dir }
    }

    /// Opens a page that must print nothing on the console and send no request.
    pub fn open(&self, html: &str) -> Page<'_> {
        self.page(html, false)
    }

    /// Opens a page that has to print something on the console.
    pub fn open_with_errors(&self, html: &str) -> Page<'_> {
        self.page(html, true)
    }

    fn page(&self, html: &str, may_err: bool) -> Page<'_> {
        let file = self.dir.path().join("report.html");
        std::fs::write(&file, html).unwrap();
        let url = format!("file://{}", file.display());
        let mut devtools = self.devtools.lock().unwrap();
        let tab = devtools.call(None, "Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": tab["targetId"], "flatten": true });
        let session = devtools.call(None, "Target.attachToTarget", attach)["sessionId"].clone();
        let session = session.as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            devtools.call(Some(&session), &format!("{domain}.enable"), json!({}));
        }
        let focus = json!({ "enabled": true });
        devtools.call(Some(&session), "Emulation.setFocusEmulationEnabled", focus);
        devtools.take_events(&session);
        devtools.call(Some(&session), "Page.navigate", json!({ "url": url }));
        devtools.wait_for(&session, "Page.loadEventFired");
        drop(devtools);
        let page = Page { browser: self, session, url, may_err };
        page.resize(super::WIDE);
        page
    }
}

impl Page<'_> {
    fn call(&self, method: &str, params: Value) -> Value {
        self.browser.devtools.lock().unwrap().call(Some(&self.session), method, params)
    }

    /// The value of a JavaScript expression.
    pub fn eval(&self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer:#}");
        answer["result"]["value"].clone()
    }

    /// Presses a key in the page.
    pub fn press(&self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
        }
    }

    /// Sets the media feature `prefers-color-scheme`.
    pub fn prefer(&self, scheme: Scheme) {
        let value = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Shows the page as it looks on paper.
    pub fn print(&self) {
        self.call("Emulation.setEmulatedMedia", json!({ "media": "print" }));
    }

    /// Sets the width of the window, in pixels.
    pub fn resize(&self, width: u32) {
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Asserts that nothing is wider than the window, except elements that can be scrolled.
    pub fn assert_fits(&self, name: &str) {
        let over = self.eval("document.documentElement.scrollWidth - innerWidth");
        assert!(over.as_f64().unwrap() <= 0.0, "{name}: {over} pixels too wide");
    }

    /// Asserts that every text has a contrast of at least 4.5 to its background, as WCAG 2.2 (1.4.3)
    /// requires.
    pub fn assert_legible(&self, name: &str) {
        assert_eq!(self.eval(CONTRASTS), json!([]), "{name}: too little contrast");
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let events = self.browser.devtools.lock().unwrap().take_events(&self.session);
        let of = |methods: &[&str]| -> Vec<&Value> {
            let is_of = |event: &&Value| methods.contains(&event["method"].as_str().unwrap());
            events.iter().filter(is_of).map(|event| &event["params"]).collect()
        };
        let said = of(&["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"]);
        assert_eq!(said.is_empty(), !self.may_err, "the console says {said:?}");
        let asked: Vec<&Value> = of(&["Network.requestWillBeSent"])
            .iter()
            .map(|asked| &asked["request"]["url"])
            // The page itself holds the content of a blob.
            .filter(|url| !url.as_str().is_some_and(|url| url.starts_with("blob:")))
            .collect();
        assert_eq!(asked, [self.url.as_str()], "what it asks for");
    }
}

/// A JavaScript expression that lists the elements whose own text has too little contrast.
const CONTRASTS: &str = "(() => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const part = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const behind = box => {
        for (; box; box = box.parentElement) {
            const back = numbers(getComputedStyle(box).backgroundColor);
            if (back.length < 4 || back[3] === 1) return back;
        }
        return [255, 255, 255];
    };
    const bad = new Set();
    for (const box of document.querySelectorAll('body *')) {
        const own = [...box.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!own || box.matches('script, title, .skip') || !box.getClientRects().length) continue;
        const style = getComputedStyle(box);
        const front = numbers(box.closest('svg') ? style.fill : style.color);
        const [a, b] = [light(front), light(behind(box))].sort((a, b) => b - a);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) {
            bad.add(`${box.tagName}.${box.getAttribute('class')} ${contrast.toFixed(2)}`);
        }
    }
    return [...bad];
})()";
