//! Chromium's DevTools Protocol over a pipe: JSON messages, each terminated by a zero byte.
//!
//! The client is written by hand because it is short: a crate for the protocol brings the whole protocol as
//! generated code, which takes longer to compile than zprobe.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Flags of Chromium: no window, and no service of the browser that uses the network.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// The shell command that starts Chromium, which reads from descriptor 3 and writes to descriptor 4: the
/// shell makes them from standard input and output.
const PIPES: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";

/// A connection to a browser; the browser ends when the value is dropped.
pub struct Devtools {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    calls: u64,
    /// Events that were read and not yet taken.
    events: Vec<Value>,
}

impl Devtools {
    /// Starts a browser with an empty profile.
    pub fn start(program: &Path, profile: &Path) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", PIPES])
            .arg(program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from), calls: 0, events: Vec::new() }
    }

    /// Calls a method of the browser, or of a page, and waits for the answer.
    pub fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("Chromium listens");
        loop {
            let mut message = self.read();
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Waits for an event of a page.
    pub fn wait_for(&mut self, session: &str, method: &str) {
        let is_it = |event: &Value| event["sessionId"] == session && event["method"] == method;
        while !self.events.iter().any(is_it) {
            let message = self.read();
            self.events.push(message);
        }
    }

    /// The events of a page since the last call.
    pub fn take_events(&mut self, session: &str) -> Vec<Value> {
        self.events.extract_if(.., |event| event["sessionId"] == session).collect()
    }

    fn read(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).expect("a pipe");
        assert_eq!(message.pop(), Some(0), "Chromium ended; does it start by itself?");
        serde_json::from_slice(&message).expect("JSON")
    }
}

impl Drop for Devtools {
    fn drop(&mut self) {
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let _ = self.child.wait();
    }
}
