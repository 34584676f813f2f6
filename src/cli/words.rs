//! The words of a command line in the spelling that clap takes.

use std::ffi::OsString;

/// The words of a command line, with dashes for underscores in the names of flags.
pub fn dashed(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    words.into_iter().scan(true, with_dashes).collect()
}

/// Replaces the underscores in the name of a flag by dashes, as torchrun does: `--nproc_per_node` becomes
/// `--nproc-per-node`. Words after `--` stay as they are. So does a word with several flags, because such a
/// word is the value of another flag.
fn with_dashes(flags: &mut bool, arg: OsString) -> Option<OsString> {
    let text = arg.to_str().filter(|text| *flags && is_flag(text));
    let Some(text) = text else { return Some(arg) };
    if text == "--" {
        *flags = false;
        return Some(arg);
    }
    Some(match text.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    })
}

fn is_flag(text: &str) -> bool {
    text.starts_with("--") && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn underscores_in_flag_names_are_dashes_up_to_a_double_dash() {
        let several = "--python a_b/bin --x_y=1";
        let args = ["--nproc_per_node=2", "--out", "a_b", "--x_y=a_b", several, "--", "--a_b"];
        let dashed = dashed(args.map(OsString::from));
        let right = ["--nproc-per-node=2", "--out", "a_b", "--x-y=a_b", several, "--", "--a_b"];
        assert_eq!(dashed, right);
    }
}
