//! A real Chromium, driven over WebDriver: its own profile, no window, and no conversation with anything but the server
//! of the test. The driver and the browser end with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_testkit::{Scratch, free_port, rest, until};

/// How WebDriver names the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// How often, and how long apart, a page is looked at until it shows something: a minute, because a busy machine is
/// slow.
const LOOKS: (u32, Duration) = (600, Duration::from_millis(100));

/// Whether pages may run scripts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scripts {
    On,
    Off,
}

pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: Scratch,
}

impl Browser {
    pub(crate) fn start(scripts: Scripts) -> Self {
        let (port, profile) = (free_port(), Scratch::new());
        let mut command = Command::new("chromedriver");
        command
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let driver = command.spawn().expect("chromedriver cannot be started; `./test tools` installs it");
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        until("chromedriver answers", || TcpStream::connect(("127.0.0.1", port)).ok());
        let profile = format!("--user-data-dir={}", browser._profile.text("profile"));
        let mut options = json!({
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--window-size=1280,1000", profile,
            ],
        });
        if scripts == Scripts::Off {
            options["prefs"] = json!({ "profile.managed_default_content_settings.javascript": 2 });
        }
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let made = browser.call("POST", "/session", &wanted).unwrap_or_else(|error| {
            panic!("Chromium cannot be started; `./test tools` installs it: {error}")
        });
        browser.session = made["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    /// One command of WebDriver. The error is the driver's own.
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let document = answer(&stream);
        match document["value"]["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", document["value"]["message"])),
            None => Ok(document["value"].clone()),
        }
    }

    fn in_session(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.call("POST", &format!("/session/{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.in_session("/url", &json!({ "url": url })).unwrap();
    }

    fn find(&self, css: &str) -> Option<String> {
        let found = self.in_session("/element", &json!({ "using": "css selector", "value": css })).ok()?;
        found[ELEMENT].as_str().map(str::to_owned)
    }

    /// Waits until the page has such an element.
    #[track_caller]
    fn element(&self, css: &str) -> String {
        self.soon(css, || self.find(css))
    }

    /// Polls for a minute.
    #[track_caller]
    pub(crate) fn soon<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        for _ in 0..LOOKS.0 {
            if let Some(found) = look() {
                return found;
            }
            rest(LOOKS.1);
        }
        panic!("not within a minute: {what}; the page shows\n{}", self.text("body"));
    }

    /// Clicks, and moves the pointer away: a table stands still while it is pointed at.
    #[track_caller]
    pub(crate) fn click(&self, css: &str) {
        let path = format!("/element/{}/click", self.element(css));
        self.in_session(&path, &json!({})).unwrap();
        let away = json!({ "type": "pointerMove", "duration": 0, "x": 1, "y": 1 });
        let pointer = json!({ "type": "pointer", "id": "mouse", "actions": [away] });
        self.in_session("/actions", &json!({ "actions": [pointer] })).unwrap();
    }

    #[track_caller]
    pub(crate) fn enter(&self, css: &str, text: &str) {
        let path = format!("/element/{}/value", self.element(css));
        self.in_session(&path, &json!({ "text": text })).unwrap();
    }

    /// Presses a key where the focus is, by its code in WebDriver.
    pub(crate) fn press(&self, key: &str) {
        let actions = [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })];
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.in_session("/actions", &json!({ "actions": [keyboard] })).unwrap();
    }

    /// The visible text of an element, or none while it is not there.
    pub(crate) fn text(&self, css: &str) -> String {
        let script =
            "const found = document.querySelector(arguments[0]); return found ? found.innerText : '';";
        match self.in_session("/execute/sync", &json!({ "script": script, "args": [css] })) {
            Ok(text) => text.as_str().unwrap_or_default().to_owned(),
            Err(_) => String::new(),
        }
    }

    /// Waits until an element shows a text.
    #[track_caller]
    pub(crate) fn shows(&self, css: &str, text: &str) {
        self.soon(&format!("{css} shows {text:?}"), || self.text(css).contains(text).then_some(()));
    }

    pub(crate) fn script(&self, script: &str) -> Value {
        self.in_session("/execute/sync", &json!({ "script": script, "args": [] })).unwrap()
    }

    /// The number that a script gives to `done`.
    pub(crate) fn measured(&self, script: &str) -> f64 {
        let script = format!("const done = arguments[0]; {script}");
        let done = self.in_session("/execute/async", &json!({ "script": script, "args": [] })).unwrap();
        done.as_f64().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        let url = self.call("GET", &format!("/session/{}/url", self.session), &Value::Null).unwrap();
        url.as_str().unwrap().to_owned()
    }

    /// Complaints of the browser: errors of scripts, refused loads, violations of the security policy.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.in_session("/se/log", &json!({ "type": "browser" })).unwrap();
        let severe = log
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["level"] != "INFO" && entry["level"] != "DEBUG");
        severe.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// A command of Chromium's own protocol.
    fn developer(&self, command: &str, parameters: &Value) -> Value {
        self.in_session("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).unwrap()
    }

    /// The size of the page, as a telephone has it.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.developer("Emulation.setDeviceMetricsOverride", &size);
    }

    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.developer("Emulation.setEmulatedMedia", &features);
    }

    /// A screenshot, as a PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        self.developer("Emulation.setScrollbarsHidden", &json!({ "hidden": true }));
        let taken =
            self.developer("Page.captureScreenshot", &json!({ "format": "png", "optimizeForSpeed": false }));
        STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()
    }
}

/// Reads one response. The driver writes headers without a space after the colon, and keeps the connection open.
fn answer(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap();
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&body)))
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser. No `unwrap` here: a panic in a destructor would hide the failure of the test.
        let end = format!("DELETE /session/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.session);
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.write_all(end.as_bytes());
            let _ = stream.read(&mut [0]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
