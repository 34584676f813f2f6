//! Wheels and archive, installed as users install them: in new environments, next to torch and DeepSpeed, by
//! uvx, and unpacked.
//!
//! The tests need the files that `cargo xtask dist` builds (`ZPROBE_TEST_DIST`), an interpreter with torch
//! 2.11 and DeepSpeed 0.18.9 (`ZPROBE_TEST_PYTHON`), and uv: `cargo xtask test` provides all three. The tests
//! need no network.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../support/interpreter.rs"]
#[expect(dead_code, reason = "nothing here has a longer form for every seed")]
mod interpreter;
mod place;

use place::{Environment, Place, dist, file, output};
use zprobe_report::Report;

/// The arguments of the run in which DeepSpeed 0.18.9 leaks the boundary microbatch.
const LEAK: [&str; 7] = ["run", "--engine", "deepspeed", "--stage", "1", "--ga", "4"];

/// The arguments with which a run prints its report as JSON.
const JSON: [&str; 2] = ["--output-format", "json"];

/// Asserts that a run of DeepSpeed 0.18.9 found the boundary leak.
fn assert_leak((code, report, said): (Option<i32>, String, String)) {
    let report: Report = serde_json::from_str(&report).unwrap_or_else(|_| panic!("{said}"));
    let codes: Vec<_> = report.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!((code, codes.first()), (Some(1), Some(&"ZP101")), "{said}");
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds"]
fn the_wheel_alone_starts_and_says_what_is_missing() {
    let place = Place::new();
    let environment = place.new_environment("alone");
    environment.install(&["zprobe-"]);
    let (code, version, _) = output(environment.zprobe(&place).arg("--version"));
    assert_eq!((code, version.trim()), (Some(0), concat!("zprobe ", env!("CARGO_PKG_VERSION"))));
    let (_, facts, said) = output(environment.zprobe(&place).arg("doctor"));
    assert!(facts.contains("install the wheel zprobe-native"), "{facts}{said}");
    let (code, _, said) = output(environment.zprobe(&place).args(["run", "--stage", "1"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("install the wheel zprobe-native"), "{said}");
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds, torch and DeepSpeed 0.18.9"]
fn the_wheel_beside_deepspeed_runs_it_without_activation() {
    let place = Place::new();
    let environment = place.copy_of_the_environment();
    environment.install(&["zprobe-"]);
    assert_leak(output(environment.zprobe(&place).args(LEAK).args(JSON)));
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds, torch, DeepSpeed 0.18.9 and uv"]
fn uvx_runs_the_active_environment_or_the_one_that_is_here() {
    let place = Place::new();
    let uvx = || {
        let mut uvx = place.command("uvx");
        uvx.arg("--from")
            .arg(file(&dist(), "zprobe-", "_x86_64.whl"))
            .arg("zprobe")
            .args(LEAK)
            .args(JSON);
        uvx
    };
    let environment = Environment::under_test();
    assert_leak(output(uvx().env("VIRTUAL_ENV", environment.path())));
    std::os::unix::fs::symlink(environment.path(), place.path().join(".venv")).unwrap();
    assert_leak(output(&mut uvx()));
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds, and torch 2.11"]
fn zprobe_native_runs_on_the_torch_beside_it_from_there_and_from_elsewhere() {
    let place = Place::new();
    let environment = place.copy_of_the_environment();
    environment.install(&["zprobe-", "zprobe_native-"]);
    let elsewhere = place.new_environment("alone");
    elsewhere.install(&["zprobe-"]);
    let mut from_elsewhere = elsewhere.zprobe(&place);
    from_elsewhere.env("VIRTUAL_ENV", environment.path());
    for mut zprobe in [environment.zprobe(&place), from_elsewhere] {
        let (code, report, said) =
            output(zprobe.args(["run", "--engine", "native", "--stage", "1", "--ga", "4"]));
        assert_eq!(code, Some(0), "{report}{said}");
        assert!(report.starts_with("CLEAN  zprobe's own engine"), "{report}");
    }
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds"]
fn the_archive_has_the_sum_that_is_said_and_all_that_goes_with_the_program() {
    let place = Place::new();
    let (code, _, said) = output(
        place.command("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(dist()),
    );
    assert_eq!(code, Some(0), "{said}");
    let archive = file(&dist(), "zprobe-", "-x86_64-unknown-linux-gnu.tar.gz");
    let (code, _, said) = output(place.command("tar").arg("-xzf").arg(archive));
    assert_eq!(code, Some(0), "{said}");
    let unpacked = file(place.path(), "zprobe-", "");
    let (_, version, _) = output(place.command(unpacked.join("zprobe")).arg("--version"));
    assert_eq!(version.trim(), concat!("zprobe ", env!("CARGO_PKG_VERSION")));
    for name in
        ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "completions/_zprobe", "man1/zprobe-run.1"]
    {
        assert!(unpacked.join(name).is_file(), "no {name}");
    }
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds"]
fn the_source_distribution_and_the_sbom_are_complete_and_name_no_directory_of_the_builder() {
    let place = Place::new();
    let source = file(&dist(), concat!("zprobe-", env!("CARGO_PKG_VERSION"), ".tar.gz"), "");
    let (code, names, said) = output(place.command("tar").arg("-tzf").arg(source));
    assert_eq!(code, Some(0), "{said}");
    for name in ["Cargo.lock", "crates/diagnose/docs/ZP101.md", "crates/zoo/train/common.py"] {
        assert!(names.lines().any(|it| it.ends_with(name)), "no {name}: {names}");
    }
    let sbom = std::fs::read_to_string(file(&dist(), "zprobe-", ".cyclonedx.json")).unwrap();
    let sbom: serde_json::Value = serde_json::from_str(&sbom).unwrap();
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    let components = sbom["components"].as_array().unwrap();
    for name in ["zprobe-diagnose", "serde_json"] {
        assert!(components.iter().any(|it| it["name"] == name), "no {name}");
    }
    assert!(!sbom.to_string().contains(env!("CARGO_MANIFEST_DIR")));
}

#[test]
#[ignore = "needs what `cargo xtask dist` builds"]
fn the_wheel_is_for_machines_as_old_as_those_that_torch_runs_on() {
    // The name of zprobe-native's wheel depends on the machine that built the wheel: a C++ compiler linked
    // the program.
    file(&dist(), "zprobe-", "-py3-none-manylinux_2_28_x86_64.whl");
    file(&dist(), "zprobe_native-", "_x86_64.whl");
}
